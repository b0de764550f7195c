#include "base/call_place.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "support/run_each.h"

namespace lockstep {
namespace {

// As a function of the library that communicates.
CallPlace call(int /*argument*/ = 0, CallSite site = CallSite::here()) {
  const CallScope scope(site);
  return current_call_place();
}

std::string expected(int line) {
  return " at base/call_place_test.cpp:" + std::to_string(line);
}

TEST(CallPlace, IsTheLineOfTheCaller) {
  EXPECT_EQ(describe_place(call()), expected(__LINE__));
  EXPECT_EQ(describe_place(call(1)), expected(__LINE__));
  const auto from_lambda = [] { return call(); };
  EXPECT_EQ(describe_place(from_lambda()), expected(__LINE__ - 1));
  EXPECT_EQ(describe_place(current_call_place()), "") << "no call is under way";
}

TEST(CallPlace, OfCallsInsideOneAnotherIsTheOutermost) {
  const auto helper = [](CallSite site) {
    const CallScope scope(site);
    return call();
  };
  EXPECT_EQ(describe_place(helper(CallSite::here())), expected(__LINE__));
}

TEST(CallPlace, HasALabelOfTheInnermostScope) {
  const CallLabel outer(number_of_label("outer"));
  {
    const CallLabel inner(number_of_label("gradient of fc1.weight"));
    EXPECT_EQ(describe_place(current_call_place()), " (gradient of fc1.weight)");
    EXPECT_EQ(describe_place(call()), expected(__LINE__) + " (gradient of fc1.weight)");
  }
  EXPECT_EQ(describe_place(current_call_place()), " (outer)");
}

TEST(CallPlace, ComesBackFromItsWord) {
  const CallPlace place{7, 9};
  EXPECT_EQ(CallPlace::of_word(place.word()).site, 7U);
  EXPECT_EQ(CallPlace::of_word(place.word()).label, 9U);
}

TEST(CallPlace, KeepsTheEndOfALongFile) {
  static const std::string file = "/" + std::string(200, 'd') + "/" + std::string(40, 'x') + ".cpp";
  const std::string text = text_of(number_of({file.c_str(), 12345})).data();
  EXPECT_EQ(text.size(), kPlaceBytes - 1);
  EXPECT_EQ(text.substr(0, 3), "...");
  EXPECT_EQ(text.substr(text.size() - 10), ".cpp:12345");
  EXPECT_EQ(std::string(text_of(number_of({"train.cpp", 1})).data()), "train.cpp:1");
  EXPECT_EQ(std::string(text_of(number_of({"/train.cpp", 1})).data()), "/train.cpp:1");
}

TEST(CallPlace, OfTheLibraryItselfIsNone) {
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(number_of({"lockstep/core/src/nn/helpers/average_gradients.cpp", 41}), 0U);
    EXPECT_EQ(number_of({"/usr/include/lockstep/nn/functional.h", 7}), 0U);
    EXPECT_EQ(number_of({"/usr/include/c++/12/bits/stl_construct.h", 119}), 0U);
    EXPECT_EQ(number_of({"/opt/libtorch/include/torch/csrc/api/include/torch/nn/pimpl.h", 72}), 0U);
  }
  EXPECT_EQ(std::string(text_of(number_of({"/home/me/lockstep/examples/train.cpp", 41})).data()),
            "examples/train.cpp:41");
}

TEST(CallPlace, HasOneNumberForEachSiteWhicheverThreadAsksFirst) {
  constexpr int kSites = 100;
  std::vector<std::vector<TextNumber>> numbers(4, std::vector<TextNumber>(kSites));
  test::run_each(4, [&](int thread) {
    for (int line = 0; line < kSites; ++line)
      numbers[thread][line] = number_of({"threads.cpp", static_cast<std::uint32_t>(line)});
  });
  for (int line = 0; line < kSites; ++line) {
    EXPECT_EQ(text_of(numbers[0][line]).data(), "threads.cpp:" + std::to_string(line));
    for (int thread = 1; thread < 4; ++thread) EXPECT_EQ(numbers[thread][line], numbers[0][line]);
  }
}

// Runs last in this file: afterwards new texts have no number.
TEST(CallPlace, ManySitesLoseTheirPlaceAndNothingElse) {
  for (std::uint32_t line = 1; line <= 2 * kMostTexts; ++line) (void)number_of({"many.cpp", line});
  EXPECT_EQ(texts_so_far(), kMostTexts);
  EXPECT_EQ(number_of({"many.cpp", 2 * kMostTexts}), 0U);
  EXPECT_EQ(number_of_label("one more"), 0U);
  EXPECT_EQ(std::string(text_of(number_of({"many.cpp", 1})).data()), "many.cpp:1");
}

}  // namespace
}  // namespace lockstep
