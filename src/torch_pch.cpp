// Exists so that one target owns the precompiled torch/torch.h, which every other target that uses LibTorch shares.
