#include "lockstep/models/vision_transformer.h"

#include <cmath>
#include <string>
#include <vector>

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

nn::LayerNorm layer_norm(std::int64_t width) {
  return nn::LayerNorm(nn::LayerNormOptions({width}).eps(1e-6));
}

// The normal distribution without what lies beyond -2 and 2.
void trunc_normal_(const torch::Tensor& tensor, double standard_deviation) {
  const torch::NoGradGuard no_grad;
  tensor.normal_(0.0, standard_deviation);
  for (torch::Tensor beyond = tensor.abs() > 2.0; beyond.any().item<bool>(); beyond = tensor.abs() > 2.0)
    tensor.copy_(torch::where(beyond, torch::empty_like(tensor).normal_(0.0, standard_deviation), tensor));
}

// With the parameters of Python's MultiheadAttention. LibTorch's own module would keep the weights of all pairs of
// patches in memory.
class SelfAttentionImpl : public nn::Cloneable<SelfAttentionImpl> {
 public:
  SelfAttentionImpl(std::int64_t width, std::int64_t heads, double dropout)
      : width_(width), heads_(heads), dropout_(dropout) {
    reset();
  }
  void reset() override {
    in_proj_weight_ = register_parameter("in_proj_weight", torch::empty({3 * width_, width_}));
    in_proj_bias_ = register_parameter("in_proj_bias", torch::zeros({3 * width_}));
    out_proj_ = register_module("out_proj", nn::Linear(width_, width_));
    nn::init::xavier_uniform_(in_proj_weight_);
    nn::init::zeros_(out_proj_->bias);
  }
  // {N, length, width}, input and output.
  torch::Tensor forward(const torch::Tensor& input) {
    // No size of the batch is a number here, so a trace of the model takes batches of any size.
    const std::vector<torch::Tensor> qkv = torch::linear(input, in_proj_weight_, in_proj_bias_)
                                               .view({-1, input.size(1), 3, heads_, width_ / heads_})
                                               .permute({2, 0, 3, 1, 4})
                                               .unbind(0);
    const torch::Tensor attention =
        at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, is_training() ? dropout_ : 0.0);
    return out_proj_->forward(attention.transpose(1, 2).flatten(2));
  }

 private:
  std::int64_t width_, heads_;
  double dropout_;
  torch::Tensor in_proj_weight_, in_proj_bias_;
  nn::Linear out_proj_{nullptr};
};
TORCH_MODULE(SelfAttention);

class EncoderBlockImpl : public nn::Cloneable<EncoderBlockImpl> {
 public:
  explicit EncoderBlockImpl(const VisionTransformerOptions& options) : options_(options) { reset(); }
  void reset() override {
    const std::int64_t width = options_.hidden_dim;
    ln_1_ = register_module("ln_1", layer_norm(width));
    self_attention_ =
        register_module("self_attention", SelfAttention(width, options_.num_heads, options_.attention_dropout));
    dropout_ = register_module("dropout", nn::Dropout(options_.dropout));
    ln_2_ = register_module("ln_2", layer_norm(width));
    const nn::Linear first(width, options_.mlp_dim);
    const nn::Linear second(options_.mlp_dim, width);
    for (const nn::Linear& layer : {first, second}) {
      nn::init::xavier_uniform_(layer->weight);
      nn::init::normal_(layer->bias, 0.0, 1e-6);
    }
    mlp_ = register_module(
        "mlp", nn::Sequential(first, nn::GELU(), nn::Dropout(options_.dropout), second, nn::Dropout(options_.dropout)));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor x = dropout_->forward(self_attention_->forward(ln_1_->forward(input))) + input;
    return x + mlp_->forward(ln_2_->forward(x));
  }

 private:
  VisionTransformerOptions options_;
  nn::LayerNorm ln_1_{nullptr};
  SelfAttention self_attention_{nullptr};
  nn::Dropout dropout_{nullptr};
  nn::LayerNorm ln_2_{nullptr};
  nn::Sequential mlp_{nullptr};
};
TORCH_MODULE(EncoderBlock);

// The blocks, by torchvision's names. A Sequential would give its clone other names up to LibTorch 2.11.
class EncoderBlocksImpl : public nn::Cloneable<EncoderBlocksImpl> {
 public:
  explicit EncoderBlocksImpl(const VisionTransformerOptions& options) : options_(options) { reset(); }
  void reset() override {
    blocks_.clear();
    for (std::int64_t layer = 0; layer < options_.num_layers; ++layer)
      blocks_.push_back(register_module("encoder_layer_" + std::to_string(layer), EncoderBlock(options_)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (EncoderBlock& block : blocks_) x = block->forward(x);
    return x;
  }

 private:
  VisionTransformerOptions options_;
  std::vector<EncoderBlock> blocks_;
};
TORCH_MODULE(EncoderBlocks);

class EncoderImpl : public nn::Cloneable<EncoderImpl> {
 public:
  explicit EncoderImpl(const VisionTransformerOptions& options) : options_(options) { reset(); }
  void reset() override {
    const std::int64_t side = options_.image_size / options_.patch_size;
    pos_embedding_ =
        register_parameter("pos_embedding", torch::empty({1, side * side + 1, options_.hidden_dim}).normal_(0.0, 0.02));
    dropout_ = register_module("dropout", nn::Dropout(options_.dropout));
    layers_ = register_module("layers", EncoderBlocks(options_));
    ln_ = register_module("ln", layer_norm(options_.hidden_dim));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return ln_->forward(layers_->forward(dropout_->forward(input + pos_embedding_)));
  }

 private:
  VisionTransformerOptions options_;
  torch::Tensor pos_embedding_;
  nn::Dropout dropout_{nullptr};
  EncoderBlocks layers_{nullptr};
  nn::LayerNorm ln_{nullptr};
};
TORCH_MODULE(Encoder);

class HeadsImpl : public nn::Cloneable<HeadsImpl> {
 public:
  explicit HeadsImpl(const VisionTransformerOptions& options) : options_(options) { reset(); }
  void reset() override {
    head_ = register_module("head", nn::Linear(options_.hidden_dim, options_.num_classes));
    nn::init::zeros_(head_->weight);
    nn::init::zeros_(head_->bias);
  }
  torch::Tensor forward(const torch::Tensor& x) { return head_->forward(x); }

 private:
  VisionTransformerOptions options_;
  nn::Linear head_{nullptr};
};
TORCH_MODULE(Heads);

void check(const VisionTransformerOptions& options) {
  const auto at_least_1 = [](std::int64_t value, const char* name) {
    TORCH_CHECK_VALUE(value >= 1, "VisionTransformerOptions: ", name, " must be at least 1, found ", value);
  };
  at_least_1(options.image_size, "image_size");
  at_least_1(options.patch_size, "patch_size");
  at_least_1(options.num_layers, "num_layers");
  at_least_1(options.num_heads, "num_heads");
  at_least_1(options.hidden_dim, "hidden_dim");
  at_least_1(options.mlp_dim, "mlp_dim");
  at_least_1(options.num_classes, "num_classes");
  at_least_1(options.in_channels, "in_channels");
  TORCH_CHECK_VALUE(options.image_size % options.patch_size == 0, "VisionTransformerOptions: image_size ",
                    options.image_size, " is no multiple of patch_size ", options.patch_size);
  TORCH_CHECK_VALUE(options.hidden_dim % options.num_heads == 0, "VisionTransformerOptions: hidden_dim ",
                    options.hidden_dim, " is no multiple of num_heads ", options.num_heads);
  for (const double part : {options.dropout, options.attention_dropout}) {
    TORCH_CHECK_VALUE(part >= 0 && part < 1,
                      "VisionTransformerOptions: dropout and attention_dropout must be in [0, 1), found ", part);
  }
}

}  // namespace

void VisionTransformerImpl::reset() {
  check(options_);
  conv_proj_ = register_module(
      "conv_proj", nn::Conv2d(nn::Conv2dOptions(options_.in_channels, options_.hidden_dim, options_.patch_size)
                                  .stride(options_.patch_size)));
  class_token_ = register_parameter("class_token", torch::zeros({1, 1, options_.hidden_dim}));
  const Encoder encoder(options_);
  encoder_ = nn::AnyModule(encoder);
  register_module("encoder", encoder);
  const Heads heads(options_);
  heads_ = nn::AnyModule(heads);
  register_module("heads", heads);
  const std::int64_t fan_in = options_.in_channels * options_.patch_size * options_.patch_size;
  trunc_normal_(conv_proj_->weight, std::sqrt(1.0 / static_cast<double>(fan_in)));
  nn::init::zeros_(conv_proj_->bias);
}

torch::Tensor VisionTransformerImpl::forward(const torch::Tensor& images) {
  TORCH_CHECK_VALUE(images.dim() == 4 && images.size(1) == options_.in_channels &&
                        images.size(2) == options_.image_size && images.size(3) == options_.image_size,
                    "VisionTransformer: expected images {N, ", options_.in_channels, ", ", options_.image_size, ", ",
                    options_.image_size, "}, found ", images.sizes());
  const torch::Tensor patches = conv_proj_->forward(images).flatten(2).permute({0, 2, 1});
  const torch::Tensor tokens = torch::cat({class_token_.expand_as(patches.slice(1, 0, 1)), patches}, 1);
  return heads_.forward(encoder_.forward(tokens).select(1, 0));
}

VisionTransformer vit_b_16(VisionTransformerOptions options) {
  const VisionTransformerOptions base;
  options.num_layers = base.num_layers;
  options.num_heads = base.num_heads;
  options.hidden_dim = base.hidden_dim;
  options.mlp_dim = base.mlp_dim;
  return VisionTransformer(options);
}

VisionTransformer vit_tiny(VisionTransformerOptions options) {
  options.num_layers = 12;
  options.num_heads = 3;
  options.hidden_dim = 192;
  options.mlp_dim = 768;
  return VisionTransformer(options);
}

}  // namespace lockstep::models
