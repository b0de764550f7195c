// custom_model_metadata() refuses at the start of a training what `lockstep predict` would refuse at its end.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "lockstep/trainer/model_library.h"
#include "lockstep/trainer/trainer.h"

namespace lockstep {
namespace {

CustomModelUse good_use() {
  return {.classes = {"daisy", "rose"}, .test_transforms = {"Resize(32)"}, .input = {3, 32, 32}};
}

std::string refusal(const std::function<void(CustomModelUse&)>& change) {
  CustomModelUse use = good_use();
  change(use);
  try {
    custom_model_metadata(use);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "not refused";
}

TEST(CustomModelMetadata, IsThatOfTheUse) {
  CustomModelUse use = good_use();
  use.precision = TrainingPrecision::kBFloat16;
  const auto metadata = custom_model_metadata(use);
  EXPECT_EQ(metadata.at("lockstep.classes"), "daisy\nrose\n");
  EXPECT_EQ(metadata.at("lockstep.input"), "3 32 32");
  EXPECT_NE(metadata.at("lockstep.config").find("precision: bf16"), std::string::npos);
  EXPECT_NE(metadata.at("lockstep.config").find("Resize(32)"), std::string::npos);
  EXPECT_EQ(metadata.at("lockstep.config").find("shared_object"), std::string::npos);
}

TEST(CustomModelMetadata, RefusesWhatTheFileWouldBeRefusedFor) {
  const struct {
    std::function<void(CustomModelUse&)> change;
    const char* message;
  } cases[] = {
      {[](auto& use) { use.classes.clear(); }, "lockstep.classes has no class"},
      {[](auto& use) { use.classes[1] = ""; }, "class 1, '', is empty"},
      {[](auto& use) { use.classes[1] = "daisy"; }, "class 1, 'daisy', has the name of another"},
      {[](auto& use) { use.classes[0] = "dai\nsy"; }, "has characters that are not printable"},
      {[](auto& use) { use.test_transforms = {"Resise(32)"}; }, "Resise"},
      {[](auto& use) { use.input = {}; }, "lockstep.input is ''"},
      {[](auto& use) {
         use.input = {3, 0, 32};
       },
       "lockstep.input is '3 0 32'"},
      {[](auto& use) {
         use.input = {3, -1, 32};
       },
       "lockstep.input is '3 -1 32'"},
      {[](auto& use) { use.test_batch_size = 0; }, "test_batch_size must be at least 1, got 0"},
      {[](auto& use) { use.options = {"depth"}; }, "expected NAME=VALUE, found depth"},
  };
  for (const auto& one : cases) {
    const std::string found = refusal(one.change);
    EXPECT_NE(found.find(one.message), std::string::npos) << "expected '" << one.message << "', found: " << found;
    EXPECT_EQ(found.find("custom_model_metadata: "), 0U) << found;
  }
}

}  // namespace
}  // namespace lockstep
