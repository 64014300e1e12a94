"""The job of the real tests: does N steps of S seconds, appends each to a file of its own and resumes from its checkpoint.

It goes in a working_dir to a Ray cluster; ``dispatcher.client`` comes with the job.
"""

import os
import sys
import time
from pathlib import Path

from dispatcher.client import attempt, checkpoint_dir, checkpoint_requested, checkpoint_saved

steps, step_s, output = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
state = checkpoint_dir() / "done"
done = int(state.read_text()) if state.exists() else 0
with output.open("a") as out:
    print(
        f"start attempt={attempt()} pid={os.getpid()} from={done}",
        file=out,
        flush=True,
    )
    while done < steps:
        time.sleep(step_s)
        print(f"step {done}", file=out, flush=True)
        done += 1
        if done < steps and checkpoint_requested():
            temporary = state.with_suffix(".tmp")
            temporary.write_text(str(done))
            temporary.rename(state)
            if checkpoint_saved():
                print(f"paused attempt={attempt()} at={done}", file=out, flush=True)
                sys.exit(0)
    print("end", file=out, flush=True)
print("all steps done")
