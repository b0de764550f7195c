"""Trains in half precision with PyTorch's GradScaler, on one process.

grad_scaler.py STEPS OUT: the parameters after STEPS steps and the scale after each of them ("scales"), as OUT in the
safetensors format. Model, batches and the steps whose loss is infinite are those of grad_scaler_parity_test.cpp.
"""
import sys

import torch
from torch import nn

from sync_batch_norm import fill
from tensor_files import write_safetensors


def train(steps, out):
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    fill(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_factor=1.7, backoff_factor=0.3, growth_interval=5)
    scales = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * step)
        x = torch.randn(6, 12, generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = net(x).float().square().mean()
        if step in (11, 12, 30):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if step % 3 == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    result = {name: tensor.double() for name, tensor in net.state_dict().items()}
    write_safetensors(out, {**result, "scales": torch.tensor(scales, dtype=torch.double)})


if __name__ == "__main__":
    train(int(sys.argv[1]), sys.argv[2])
