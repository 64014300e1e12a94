"""A small job for the demonstration: it does STEPS steps of STEP_S seconds and writes each one down.

It goes on from its own checkpoint when it is started again, and it stops when it is asked to. It knows nothing of prices.
"""

import sys
import time

from dispatcher.client import attempt, checkpoint_dir, checkpoint_requested, checkpoint_saved

steps, step_s = int(sys.argv[1]), float(sys.argv[2])
done_file = checkpoint_dir() / "steps_done"
done = int(done_file.read_text()) if done_file.exists() else 0
print(f"attempt {attempt()}: goes on after step {done} of {steps}", flush=True)
while done < steps:
    time.sleep(step_s)
    done += 1
    partial = done_file.with_suffix(".tmp")
    partial.write_text(str(done))
    partial.rename(done_file)
    print(f"step {done}", flush=True)
    if done < steps and checkpoint_requested() and checkpoint_saved():
        print(f"attempt {attempt()}: checkpoint at step {done}, stopping", flush=True)
        sys.exit(0)
print("done", flush=True)
