#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/tensor_rules.h"
#include "checkpoint/python/pickle_names.h"
#include "checkpoint/python/pickle_writer.h"
#include "checkpoint/python/zip_file.h"
#include "checkpoint/state/file_values.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/checkpoint/torch_file.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kDeepestWritten = 100;  // what read_torch_file() accepts

// Where a tensor is in the file: a view of the storage with this number.
struct PlacedTensor {
  std::size_t storage;
  std::int64_t count;  // elements of that storage
  std::int64_t offset;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  bool conj = false;  // the values are the conjugates of the memory's
  bool neg = false;
};

// First note() each tensor of a file, then place() each. Tensors of one dtype that share memory share a storage in the
// file; a tensor that has its memory for itself gets a storage with its own elements only. A tensor with more elements
// than its memory (expanded, overlapping) keeps its memory and its strides.
class SharedStorages {
 public:
  void note(const torch::Tensor& tensor) {
    if (!has_memory(tensor)) return;
    kept_.push_back(tensor);
    const View view{tensor.storage_offset(), {tensor.sizes().vec(), tensor.strides().vec()}};
    ++views_[memory_of(tensor)][view];
  }

  PlacedTensor place(const torch::Tensor& tensor) {
    if (!has_memory(tensor))
      return place_alone(torch::empty(tensor.sizes(), torch::dtype(tensor.scalar_type())).zero_());
    PlacedTensor placed = place_values(without_bits(tensor));
    placed.conj = tensor.is_conj();
    placed.neg = tensor.is_neg();
    return placed;
  }

  // The storages, as flat tensors of the CPU without gaps.
  const std::vector<torch::Tensor>& storages() const { return storages_; }

 private:
  using Memory = std::pair<const void*, torch::ScalarType>;
  // What distinguishes one view from another.
  using View = std::pair<std::int64_t, std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>>;

  static bool has_memory(const torch::Tensor& tensor) { return !tensor._is_zerotensor() && tensor.numel() > 0; }

  // What the memory of a tensor that may be lazily conjugated or negated holds.
  static torch::Tensor without_bits(const torch::Tensor& tensor) {
    torch::Tensor values = tensor.detach();
    if (values.is_conj()) values._set_conj(false);
    values._set_neg(false);
    return values;
  }

  static std::int64_t elements_of_memory(const torch::Tensor& tensor) {
    return static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.element_size());
  }

  static Memory memory_of(const torch::Tensor& tensor) {
    return {tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type()};
  }

  PlacedTensor place_values(const torch::Tensor& tensor) {
    const Memory memory = memory_of(tensor);
    // Strides may repeat elements so often that their values alone would take far more than the memory.
    if (tensor.numel() > elements_of_memory(tensor) || views_.at(memory).size() > 1) return place_whole(tensor);
    // The same tensor under several names is written once.
    if (const auto found = alone_.find(memory); found != alone_.end()) return found->second;
    return alone_.emplace(memory, place_alone(tensor)).first->second;
  }

  PlacedTensor place_whole(const torch::Tensor& tensor) {
    const auto [found, is_new] = whole_.try_emplace(memory_of(tensor), storages_.size());
    if (is_new) {
      storages_.push_back(tensor.as_strided({elements_of_memory(tensor)}, {1}, 0).to(torch::kCPU));
    }
    return {found->second, storages_[found->second].numel(), tensor.storage_offset(), tensor.sizes().vec(),
            tensor.strides().vec()};
  }

  PlacedTensor place_alone(const torch::Tensor& tensor) {
    const bool keeps_strides = tensor.is_non_overlapping_and_dense();  // such as channels_last
    const torch::Tensor dense = keeps_strides ? tensor : tensor.contiguous();
    storages_.push_back(dense.as_strided({dense.numel()}, {1}).to(torch::kCPU));
    return {storages_.size() - 1, dense.numel(), 0, dense.sizes().vec(), dense.strides().vec()};
  }

  std::map<Memory, std::map<View, std::size_t>> views_;  // how many different views each memory has
  std::map<Memory, std::size_t> whole_;                  // storages that are there already
  std::map<Memory, PlacedTensor> alone_;
  std::vector<torch::Tensor> storages_;
  std::vector<torch::Tensor> kept_;  // keeps the noted memory alive, so that no address is used again
};

[[noreturn]] void refuse(const std::string& what) {
  throw CheckpointError(ErrorCode::kUnsupported, what);
}

// Calls `tensor` for each tensor inside of a value, in the order in which they are written.
template <typename Each>
void for_each_tensor(const c10::IValue& value, Each each, int depth = 0) {
  if (depth > kDeepestWritten)
    refuse(fmt::format("the value is nested over {} deep, or contains itself", kDeepestWritten));
  if (value.isTensor()) {
    each(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) for_each_tensor(item, each, depth + 1);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) for_each_tensor(item, each, depth + 1);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) for_each_tensor(entry.value(), each, depth + 1);
  }
}

bool is_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto first = static_cast<unsigned char>(text[i]);
    const std::size_t length = first < 0x80   ? 1
                               : first < 0xC2 ? 0
                               : first < 0xE0 ? 2
                               : first < 0xF0 ? 3
                               : first < 0xF5 ? 4
                                              : 0;
    if (length == 0 || length > text.size() - i) return false;
    for (std::size_t more = 1; more < length; ++more) {
      if ((static_cast<unsigned char>(text[i + more]) & 0xC0) != 0x80) return false;
    }
    const auto second = length > 1 ? static_cast<unsigned char>(text[i + 1]) : 0;
    // Refuses overlong forms, surrogates, and numbers above U+10FFFF.
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
        (first == 0xF4 && second > 0x8F)) {
      return false;
    }
    i += length;
  }
  return true;
}

class ValueWriter {
 public:
  explicit ValueWriter(SharedStorages& storages) : storages_(storages) {}

  std::string pickle(const c10::IValue& value) {
    try {
      write(value);
    } catch (const CheckpointError& error) {
      throw CheckpointError(error.code(), place_.empty() ? error.what() : fmt::format("{}: {}", place_, error.what()));
    }
    return out_.finish();
  }

 private:
  void write(const c10::IValue& value) {
    if (value.isNone()) {
      out_.none();
    } else if (value.isBool()) {
      out_.boolean(value.toBool());
    } else if (value.isInt()) {
      out_.integer(value.toInt());
    } else if (value.isDouble()) {
      out_.floating(value.toDouble());
    } else if (value.isString()) {
      text(value.toStringRef());
    } else if (value.isUnsigned()) {
      out_.unsigned_integer(value.toUInt());
    } else if (value.isTensor()) {
      tensor(value.toTensor());
    } else {
      write_larger(value);
    }
  }

  void write_larger(const c10::IValue& value) {
    if (value.isList()) {
      out_.begin_list();
      items(value.toListRef());
      out_.end_list();
    } else if (value.isTuple()) {
      out_.begin_tuple();
      items(value.toTupleRef().elements());
      out_.end_tuple();
    } else if (value.isGenericDict()) {
      dict(value.toGenericDict());
    } else if (value.isComplexDouble()) {
      const c10::complex<double> number = value.toComplexDouble();
      call("__builtin__", "complex", [&] { out_.floating(number.real()), out_.floating(number.imag()); });
    } else if (value.isDevice()) {
      call("torch", "device", [&] { out_.text(value.toDevice().str()); });
    } else if (const std::string* what = foreign_text(value)) {
      refuse(*what + std::string(kForeignRefused));
    } else {
      refuse(
          fmt::format("a value of the kind {} cannot be written: expected tensors, numbers, text, lists, tuples and "
                      "dicts",
                      value.tagKind()));
    }
  }

  template <typename Arguments>
  void call(std::string_view module, std::string_view name, Arguments arguments) {
    out_.name(module, name);
    out_.begin_tuple();
    arguments();
    out_.end_tuple();
    out_.call();
  }

  template <typename Items>
  void items(const Items& values) {
    std::size_t index = 0;
    for (const c10::IValue& value : values) inside(fmt::format("[{}]", index++), [&] { write(value); });
  }

  void dict(const c10::impl::GenericDict& values) {
    out_.begin_dict();
    for (const auto& entry : values) {
      const c10::IValue& key = entry.key();
      const std::string place =
          key.isString() ? fmt::format("[\"{}\"]", printable(std::string_view(key.toStringRef()).substr(0, 60)))
                         : "[...]";
      inside(place, [&] {
        if (!key.isString() && !key.isInt() && !key.isDouble() && !key.isBool()) {
          refuse("a key must be text or a number");
        }
        write(key);
        write(entry.value());
      });
    }
    out_.end_dict();
  }

  template <typename Run>
  void inside(const std::string& place, Run run) {
    const std::size_t before = place_.size();
    place_ += place;
    run();
    place_.resize(before);
  }

  // A long text that is used many times is written once, as it is in memory once.
  void text(const std::string& utf8) {
    constexpr std::size_t kLong = 256;
    const bool is_long = utf8.size() >= kLong;
    if (is_long && out_.again(&utf8)) return;
    if (!is_utf8(utf8)) refuse("its text is not UTF-8");
    if (utf8.size() > 0xFFFFFFFF) refuse("its text has over 4 GiB");
    out_.text(utf8);
    if (is_long) out_.remember(&utf8);
  }

  void counts(const std::vector<std::int64_t>& numbers) {
    out_.begin_tuple();
    for (const std::int64_t number : numbers) out_.integer(number);
    out_.end_tuple();
  }

  void tensor(const torch::Tensor& tensor) {
    if (!tensor.defined()) return out_.none();
    if (const std::string reason = why_not_saved(tensor); !reason.empty()) refuse("the tensor " + reason);
    const DtypeNames* dtype = find_dtype(tensor.scalar_type());
    if (dtype == nullptr) {
      refuse(fmt::format("torch.save cannot hold the tensor's dtype {}", c10::toString(tensor.scalar_type())));
    }
    const PlacedTensor placed = storages_.place(tensor);
    const bool typed = !dtype->storage.empty();
    call("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3", [&] {
      storage(*dtype, placed, typed ? 1 : static_cast<std::int64_t>(tensor.element_size()));
      out_.integer(placed.offset);
      counts(placed.sizes);
      counts(placed.strides);
      out_.boolean(tensor.requires_grad());
      out_.empty_mapping();
      if (!typed) out_.name("torch", dtype->name);
      if (!placed.conj && !placed.neg) return;
      out_.begin_dict();  // Python sets each bit that is named, whatever its value
      if (placed.conj) out_.often("conj"), out_.boolean(true);
      if (placed.neg) out_.often("neg"), out_.boolean(true);
      out_.end_dict();
    });
  }

  void storage(const DtypeNames& dtype, const PlacedTensor& placed, std::int64_t unit) {
    out_.begin_tuple();
    out_.often("storage");
    out_.name(dtype.storage.empty() ? "torch.storage" : "torch",
              dtype.storage.empty() ? std::string_view("UntypedStorage") : dtype.storage);
    out_.text(std::to_string(placed.storage));
    out_.often("cpu");
    out_.integer(placed.count * unit);
    out_.end_tuple();
    out_.storage();
  }

  PickleWriter out_;
  SharedStorages& storages_;
  std::string place_;
};

void check_torch_file(const Status& status) {
  if (!status.ok()) throw CheckpointError(status.code(), status.message());
}

AtomicFile create_torch_file(const std::filesystem::path& path) {
  auto file = AtomicFile::create(path);
  check_torch_file(file.status());
  return std::move(file).value();
}

}  // namespace

void write_torch_file(const std::filesystem::path& path, const c10::IValue& value) {
  SharedStorages storages;
  const std::string pickle = in_context(path.native(), [&] {
    for_each_tensor(value, [&](const torch::Tensor& tensor) {
      if (tensor.defined() && why_not_saved(tensor).empty()) storages.note(tensor);
    });
    return ValueWriter(storages).pickle(value);
  });
  AtomicFile out = create_torch_file(path);
  ZipWriter zip(out);
  const std::string root = "archive/";
  check_torch_file(zip.add(root + "data.pkl", pickle));
  check_torch_file(zip.add(root + "byteorder", "little"));
  for (std::size_t i = 0; i < storages.storages().size(); ++i) {
    const torch::Tensor& bytes = storages.storages()[i];
    check_torch_file(zip.add(root + "data/" + std::to_string(i),
                             std::span(static_cast<const std::uint8_t*>(bytes.const_data_ptr()), bytes.nbytes())));
  }
  check_torch_file(zip.add(root + "version", "3\n"));
  check_torch_file(zip.finish());
  check_torch_file(out.commit());
}

}  // namespace lockstep::checkpoint
