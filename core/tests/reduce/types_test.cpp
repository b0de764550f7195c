#include "lockstep/reduce/types.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace lockstep::comm {
namespace {

DataType type_at(int i) {
  return static_cast<DataType>(i);
}
ReduceOp op_at(int i) {
  return static_cast<ReduceOp>(i);
}

TEST(Types, SizesAreThoseOfTheElements) {
  const std::size_t expected[kNumDataTypes] = {1, 1, 2, 4, 8, 2, 4, 8, 2, 2, 4, 8, 8, 16, 4, 1, 1};
  for (int i = 0; i < kNumDataTypes; ++i) EXPECT_EQ(size_of(type_at(i)), expected[i]) << to_string(type_at(i));
}

TEST(Types, NamesAreDistinct) {
  std::set<std::string_view> types, ops;
  for (int i = 0; i < kNumDataTypes; ++i) types.insert(to_string(type_at(i)));
  for (int i = 0; i < kNumReduceOps; ++i) ops.insert(to_string(op_at(i)));
  EXPECT_EQ(types.size(), static_cast<std::size_t>(kNumDataTypes));
  EXPECT_EQ(ops.size(), static_cast<std::size_t>(kNumReduceOps));
  EXPECT_EQ(types.count("unknown") + ops.count("unknown"), 0u);
}

// One letter for each operation, in the order of ReduceOp: sum avg product min max band bor bxor premul_sum.
std::string supported(DataType type) {
  const std::string_view letters = "sapnx&|^f";
  std::string answer;
  for (int i = 0; i < kNumReduceOps; ++i) answer += is_supported(type, op_at(i)) ? letters[i] : '-';
  return answer;
}

TEST(Types, SupportFollowsTheKindOfNumber) {
  for (DataType type : {DataType::kUInt8, DataType::kInt8, DataType::kInt16, DataType::kInt32, DataType::kInt64,
                        DataType::kUInt16, DataType::kUInt32, DataType::kUInt64}) {
    EXPECT_EQ(supported(type), "sapnx&|^-") << to_string(type);
  }
  for (DataType type : {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    EXPECT_EQ(supported(type), "sapnx---f") << to_string(type);
  }
  for (DataType type : {DataType::kComplex32, DataType::kComplex64, DataType::kComplex128}) {
    EXPECT_EQ(supported(type), "sap-----f") << to_string(type);
  }
  EXPECT_EQ(supported(DataType::kBool), "s-pnx&|^-");
  EXPECT_EQ(supported(DataType::kByte), "---------");
}

}  // namespace
}  // namespace lockstep::comm
