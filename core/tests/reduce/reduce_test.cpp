#include "lockstep/reduce/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/instruction_set.h"
#include "reduce/reduce_kernels.h"
#include "reduce/reduce_reference.h"

namespace lockstep::comm {
namespace {

using reference::Bytes;

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardByte{0xA5};

// A buffer that starts `offset` bytes after a multiple of 64, with bytes on both sides that must stay as they are.
class Guarded {
 public:
  Guarded(const Bytes& content, std::size_t offset)
      : memory_(content.size() + 3 * kGuard, kGuardByte), size_(content.size()) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kGuard;
    start_ = kGuard + (kGuard - address % kGuard) % kGuard + offset % kGuard;
    std::copy(content.begin(), content.end(), memory_.begin() + static_cast<std::ptrdiff_t>(start_));
  }
  std::byte* data() { return memory_.data() + start_; }
  Bytes content() const {
    const auto first = memory_.begin() + static_cast<std::ptrdiff_t>(start_);
    return {first, first + static_cast<std::ptrdiff_t>(size_)};
  }
  bool guards_intact() const {
    const auto is_guard = [](std::byte b) { return b == kGuardByte; };
    const auto first = memory_.begin() + static_cast<std::ptrdiff_t>(start_);
    return std::all_of(memory_.begin(), first, is_guard) &&
           std::all_of(first + static_cast<std::ptrdiff_t>(size_), memory_.end(), is_guard);
  }

 private:
  Bytes memory_;
  std::size_t size_;
  std::size_t start_ = 0;
};

struct Case {
  Reduction reduction;
  std::size_t count;
  std::size_t num_outputs;
  bool in_place;  // outputs are the last inputs
};

void run(InstructionSet isa, const Case& test, std::vector<Guarded>& inputs, std::vector<Guarded>& outputs) {
  std::vector<const std::byte*> in;
  std::vector<std::byte*> out;
  for (Guarded& input : inputs) in.push_back(input.data());
  for (std::size_t i = 0; i < test.num_outputs; ++i) {
    out.push_back(test.in_place ? inputs[inputs.size() - 1 - i].data() : outputs[i].data());
  }
  const Reduction& reduction = test.reduction;
  reduce_kernel(isa)({reduction.type, reduction.op, reduction.factor, in.size(), in.data(), in.size(), out.data(),
                      out.size(), test.count * size_of(reduction.type)});
}

// Whether the outputs hold `expected`, every other buffer is as before, and nothing around them was touched.
template <class Reference>
void check(InstructionSet isa, const Case& test, const std::vector<Bytes>& contents, const Bytes& expected) {
  const std::size_t element = size_of(test.reduction.type);
  std::vector<Guarded> inputs, outputs;
  for (std::size_t i = 0; i < contents.size(); ++i) inputs.emplace_back(contents[i], i * element);
  for (std::size_t i = 0; i < test.num_outputs; ++i) outputs.emplace_back(Bytes(expected.size()), (i + 3) * element);
  run(isa, test, inputs, outputs);

  const auto name = [&] {
    return std::string(to_string(isa)) + " " + std::string(to_string(test.reduction.type)) + " " +
           std::string(to_string(test.reduction.op)) + " count " + std::to_string(test.count) + " inputs " +
           std::to_string(contents.size()) + " outputs " + std::to_string(test.num_outputs) +
           (test.in_place ? " in place" : "");
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool is_output = test.in_place && inputs.size() - i <= test.num_outputs;
    ASSERT_TRUE(Reference::same(inputs[i].content(), is_output ? expected : contents[i])) << name() << ", buffer " << i;
    ASSERT_TRUE(inputs[i].guards_intact()) << name() << ", around input " << i;
  }
  for (Guarded& output : outputs) {
    ASSERT_TRUE(test.in_place || Reference::same(output.content(), expected)) << name();
    ASSERT_TRUE(output.guards_intact()) << name() << ", around an output";
  }
}

void check_all_isas(const Reduction& reduction, std::size_t count, std::size_t num_inputs, std::mt19937& random) {
  reference::visit(reduction.type, [&]<class Reference>(Reference) {
    std::vector<Bytes> contents;
    for (std::size_t i = 0; i < num_inputs; ++i) contents.push_back(Reference::fill(count, random));
    const Bytes expected = Reference::reduce(reduction, contents);
    for (const InstructionSet isa : supported_instruction_sets()) {
      for (std::size_t num_outputs : {std::size_t{0}, std::size_t{1}, std::size_t{2}, num_inputs}) {
        check<Reference>(isa, {reduction, count, num_outputs, false}, contents, expected);
        if (num_outputs > num_inputs) continue;
        check<Reference>(isa, {reduction, count, num_outputs, true}, contents, expected);
      }
    }
  });
}

class ReduceEveryType : public testing::TestWithParam<int> {};

// Every instruction set gives the bits of the reference.
TEST_P(ReduceEveryType, MatchesTheReference) {
  const auto type = static_cast<DataType>(GetParam());
  std::mt19937 random(1234);
  for (int i = 0; i < kNumReduceOps; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (!is_supported(type, op)) continue;
    for (std::size_t count : {0, 1, 2, 7, 15, 16, 17, 63, 65, 130, 1000}) {
      for (std::size_t num_inputs : {1, 2, 3, 4, 5, 9}) {
        check_all_isas({type, op, 1.0 / 3}, count, num_inputs, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ReduceEveryType, testing::Range(0, kNumDataTypes - 1),
                         [](const auto& info) { return std::string(to_string(static_cast<DataType>(info.param))); });

template <class T>
std::vector<T> reduce_with(InstructionSet isa, const Reduction& reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<T> result(inputs[0].size());
  std::vector<const std::byte*> in;
  for (const auto& input : inputs) in.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::byte* out[] = {reinterpret_cast<std::byte*>(result.data())};
  reduce_kernel(isa)({reduction.type, reduction.op, reduction.factor, in.size(), in.data(), in.size(), out, 1,
                      result.size() * sizeof(T)});
  return result;
}

template <class Check>
void for_each_isa(const Check& check) {
  for (const InstructionSet isa : supported_instruction_sets()) {
    SCOPED_TRACE(to_string(isa));
    check(isa);
  }
}

bool is_nan16(DataType type, std::uint16_t bits) {
  return (bits & 0x7FFF) > (type == DataType::kFloat16 ? 0x7C00 : 0x7F80);
}

TEST(ReduceSmallFloats, EveryNumberComesBackUnchanged) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for_each_isa([&](InstructionSet isa) {
    for (DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
      const auto result = reduce_with<std::uint16_t>(isa, {type, ReduceOp::kMax}, {all});
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (is_nan16(type, all[i])) {
          ASSERT_TRUE(is_nan16(type, result[i])) << i;
        } else {
          ASSERT_EQ(result[i], all[i]);
        }
      }
    }
  });
}

// All exponents, ties and neighbours of ties, denormal results and overflow: multiplied in float32, rounded once.
TEST(ReduceSmallFloats, RoundOnceToNearestEven) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  Bytes bytes(all.size() * 2);
  std::memcpy(bytes.data(), all.data(), bytes.size());
  for (DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    for (double factor : {0.5, 0.25, 1.0 / 3, 1.0009765625, 1.5, 3.0, 1e-5}) {
      const Reduction reduction{type, ReduceOp::kPremulSum, factor};
      reference::visit(type, [&]<class Reference>(Reference) {
        const Bytes expected = Reference::reduce(reduction, {bytes});
        for_each_isa([&](InstructionSet isa) {
          const auto result = reduce_with<std::uint16_t>(isa, reduction, {all});
          Bytes got(bytes.size());
          std::memcpy(got.data(), result.data(), got.size());
          EXPECT_TRUE(Reference::same(got, expected)) << to_string(type) << " times " << factor;
        });
      });
    }
  }
}

TEST(Reduce, MinAndMaxPassANaNOnFromAnyInput) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for_each_isa([&](InstructionSet isa) {
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      const auto result =
          reduce_with<float>(isa, {DataType::kFloat32, op}, {{nan, 1, 1, 1}, {2, nan, 2, 2}, {3, 3, nan, 3}});
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(result[i])) << i;
      EXPECT_EQ(result[3], op == ReduceOp::kMin ? 1 : 3);
    }
  });
}

TEST(Reduce, AverageIsTheQuotientOfTheSum) {
  for_each_isa([&](InstructionSet isa) {
    const auto floats = reduce_with<float>(isa, {DataType::kFloat32, ReduceOp::kAvg}, {{0.1f}, {0.2f}, {0.7f}});
    EXPECT_EQ(floats[0], (0.1f + 0.2f + 0.7f) / 3.0f);
    const auto integers = reduce_with<std::int32_t>(isa, {DataType::kInt32, ReduceOp::kAvg}, {{-3, 7}, {-4, 8}});
    EXPECT_EQ(integers, (std::vector<std::int32_t>{-3, 7}));
    // More inputs than the type can count.
    const std::vector<std::vector<std::int8_t>> many(200, {0, 0});
    EXPECT_EQ(reduce_with<std::int8_t>(isa, {DataType::kInt8, ReduceOp::kAvg}, many), many[0]);
    // A sum that the type cannot hold.
    const auto bytes = reduce_with<std::uint8_t>(isa, {DataType::kUInt8, ReduceOp::kAvg}, {{200}, {255}});
    EXPECT_EQ(bytes[0], 227);
  });
}

TEST(Reduce, BoolTakesAnyByteButZeroForTrue) {
  const std::vector<std::vector<std::uint8_t>> inputs = {{0, 2, 4, 0}, {0, 1, 0, 255}};
  for_each_isa([&](InstructionSet isa) {
    const auto with = [&](ReduceOp op) { return reduce_with<std::uint8_t>(isa, {DataType::kBool, op}, inputs); };
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) EXPECT_EQ(with(op), (std::vector<std::uint8_t>{0, 1, 1, 1}));
    for (ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin}) {
      EXPECT_EQ(with(op), (std::vector<std::uint8_t>{0, 1, 0, 0}));
    }
  });
}

TEST(Reduce, RunsOnTheInstructionSetInUse) {
  const std::vector<float> a = {1, 2, 3}, b = {10, 20, 30};
  std::vector<float> result(3);
  const std::byte* in[] = {reinterpret_cast<const std::byte*>(a.data()), reinterpret_cast<const std::byte*>(b.data())};
  std::byte* out[] = {reinterpret_cast<std::byte*>(result.data())};
  reduce(Reduction{}, in, out, 3);
  EXPECT_EQ(result, (std::vector<float>{11, 22, 33}));
  EXPECT_EQ(reduce_isa(), to_string(instruction_set()));
}

TEST(Reduce, NoElementsNeedNoMemory) {
  const std::byte* in[] = {nullptr, nullptr};
  std::byte* out[] = {nullptr, nullptr};
  reduce(Reduction{}, in, out, 0);
}

}  // namespace
}  // namespace lockstep::comm
