"""Begins a training that interchange_train (main.cpp) goes on with, or goes on with one that it has saved.

begin.py save FILE    trains 20 steps from the start and saves
begin.py load FILE    loads what the C++ program has saved, trains 20 steps and prints the loss
"""
import sys

import torch
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
step = 0
if sys.argv[1] == "load":
    run = torch.load(sys.argv[2], weights_only=True)
    model.load_state_dict(run["model"])
    optimizer.load_state_dict(run["optimizer"])
    step = run["step"]
for step in range(step, step + 20):
    inputs = torch.sin(torch.arange(640.0) * (step + 1)).view(64, 10)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"Python: loss {loss.item():.4f} after {step + 1} steps")
if sys.argv[1] == "save":
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, sys.argv[2])
