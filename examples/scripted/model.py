"""Makes the model that scripted_train (train.cpp) trains, or reads what it has trained.

python model.py make MODEL            writes a scripted model
python model.py check MODEL TRAINED   loads TRAINED.pt (the whole model) and TRAINED.state.pt (its state dict)
"""
import sys
import warnings

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(x)

    # The training step of a scripted model may be any method, with any arguments and results.
    @torch.jit.export
    def training_step(self, x, labels):
        scores = self.layers(x)
        return nn.functional.cross_entropy(scores, labels), scores


warnings.simplefilter("ignore")  # torch.jit works, and says that it is deprecated
if sys.argv[1] == "make":
    torch.manual_seed(1)
    torch.jit.script(Net()).save(sys.argv[2])
else:
    whole = torch.jit.load(sys.argv[3] + ".pt").eval()
    filled = torch.jit.load(sys.argv[2]).eval()
    filled.load_state_dict(torch.load(sys.argv[3] + ".state.pt", weights_only=True))
    points = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    assert torch.equal(whole(points), filled(points))
    print("classes of the four quadrants:", whole(points).argmax(1).tolist())
