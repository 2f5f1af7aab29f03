"""A script that trains until it is stopped, in parts that tests put together."""

TRAINS = """
import torch
import muster_runtime as muster
session = muster.start()
model = session.wrap(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.track(model=model, optimizer=optimizer)
for step in session.steps(10**6):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
"""
"""What follows is done in each step."""

MARKS = """
    if step == 3: mark("trains")
"""

ENDS = """
    if session.is_leader and (Path(__file__).parent / "end").exists():
        os.kill(os.getppid(), signal.SIGTERM)
"""
"""Asks its launcher to stop as soon as there is a file `end` beside the script."""
