"""How to start the console: the command line and the environment of its process.

It starts nothing itself, and knows nothing of the control plane but its address.
"""

import sys
from pathlib import Path

#: The script that Streamlit runs.
SCRIPT = Path(__file__).with_name("console.py")


def command(address: str, port: int, token: str | None = None) -> tuple[list[str], dict[str, str]]:
    """The arguments and the additions to the environment that start the console for the control plane at ``address``,
    listening on loopback at ``port``. The token goes into the environment, since others can read a command line.
    ``/_stcore/health`` answers 200 once it serves."""
    options = {
        "server.address": "127.0.0.1",
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.runOnSave": "false",
        "browser.gatherUsageStats": "false",
        "browser.serverAddress": "127.0.0.1",
        # Streamlit's own red is kept for alarms. A colour for both themes at once would leave the browser no choice of theme.
        "theme.light.primaryColor": "#0072B2",
        "theme.dark.primaryColor": "#0072B2",
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "client.showErrorLinks": "false",
    }
    argv = [sys.executable, "-m", "streamlit", "run", str(SCRIPT)]
    argv += [f"--{name}={value}" for name, value in options.items()]
    # An empty token is set too, so that one meant for something else is not inherited.
    return argv, {"GRIDSHIFT_ADDRESS": address, "GRIDSHIFT_TOKEN": token or ""}
