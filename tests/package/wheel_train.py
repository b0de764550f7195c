"""A rank of wheel.py: two ranks reach the weights of one process that has the samples of both."""
import copy
import pathlib

import torch
import torch.distributed as dist

import lockstep

STEPS = 5


def step(model, samples, targets):
    model.zero_grad()
    torch.nn.functional.mse_loss(model(samples), targets).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad


dist.init_process_group("lockstep")
torch.manual_seed(1)
alone = torch.nn.Linear(16, 4)
ddp = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(alone))
for _ in range(STEPS):
    samples, targets = torch.randn(8, 16), torch.randn(8, 4)
    step(alone, samples, targets)
    mine = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    step(ddp, samples[mine], targets[mine])
for expected, found in zip(alone.parameters(), ddp.parameters()):
    torch.testing.assert_close(found, expected)

# The libraries are the wheel's own, whatever the machine has.
installed = pathlib.Path(lockstep.__file__).resolve().parents[1]
loaded = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()}
for name in ("_engine", "libspdlog", "libfmt"):
    paths = [path for path in loaded if pathlib.Path(path).name.startswith(name)]
    assert len(paths) == 1 and installed in pathlib.Path(paths[0]).parents, (name, paths, installed)
dist.destroy_process_group()
print("trained")
