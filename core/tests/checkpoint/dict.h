// Dictionaries of any keys and values, as files of PyTorch hold them.
#pragma once

#include <torch/torch.h>

namespace lockstep::checkpoint {

using Dict = c10::impl::GenericDict;

inline Dict make_dict() {
  return Dict(c10::AnyType::get(), c10::AnyType::get());
}

}  // namespace lockstep::checkpoint
