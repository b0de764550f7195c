// Vision transformers (Dosovitskiy et al., 2020) with torchvision's names of parameters: class_token, conv_proj,
// encoder.pos_embedding, encoder.layers.encoder_layer_0.ln_1, ..., encoder.ln, heads.head.
//
//   auto model = lockstep::models::vit_b_16();
//   auto small = lockstep::models::vit_tiny({.image_size = 32, .patch_size = 4, .num_classes = 10});
//   auto logits = small->forward(torch::randn({8, 3, 32, 32}));  // {8, 10}
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>

namespace lockstep::models {

struct VisionTransformerOptions {
  // Pictures are image_size x image_size. patch_size divides it.
  std::int64_t image_size = 224;
  std::int64_t patch_size = 16;
  std::int64_t num_layers = 12;
  // Divides hidden_dim.
  std::int64_t num_heads = 12;
  std::int64_t hidden_dim = 768;
  std::int64_t mlp_dim = 3072;
  // Dropout: the shares of the activations, and of the attention weights, that are set to zero in training; in [0, 1).
  double dropout = 0.0;
  double attention_dropout = 0.0;
  std::int64_t num_classes = 1000;
  std::int64_t in_channels = 3;
};

class VisionTransformerImpl : public torch::nn::Cloneable<VisionTransformerImpl> {
 public:
  // Draws weights from LibTorch's generator (torch::manual_seed) by torchvision's rules. The last layer is zero, so a
  // new model's logits are zero too.
  explicit VisionTransformerImpl(const VisionTransformerOptions& options = {}) : options_(options) { reset(); }
  void reset() override;

  // From float images {N, in_channels, image_size, image_size} to logits {N, num_classes}. Another shape is an error.
  torch::Tensor forward(const torch::Tensor& images);

 private:
  VisionTransformerOptions options_;
  torch::Tensor class_token_;
  torch::nn::Conv2d conv_proj_{nullptr};
  torch::nn::AnyModule encoder_;
  torch::nn::AnyModule heads_;
};
TORCH_MODULE(VisionTransformer);

// torchvision's vit_b_16: the defaults above. Sets num_layers, num_heads, hidden_dim and mlp_dim, and leaves patch_size
// as it is, for small pictures; weights of torchvision's model need 16.
VisionTransformer vit_b_16(VisionTransformerOptions options = {});
// DeiT-Ti (Touvron et al., 2020): 12 layers, 3 heads, 192 and 768 wide; 5.7 million parameters. torchvision's
// VisionTransformer class with these numbers has the same state dict.
VisionTransformer vit_tiny(VisionTransformerOptions options = {});

}  // namespace lockstep::models
