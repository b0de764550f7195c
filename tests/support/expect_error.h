#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep::test {

// Expects that `action` throws an `Error` with this code, whose text contains all of `pieces`.
template <typename Error>
void expect_error(ErrorCode code, std::initializer_list<std::string> pieces, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    for (const std::string& piece : pieces) {
      EXPECT_NE(std::string(error.what()).find(piece), std::string::npos)
          << "expected '" << piece << "' in: " << error.what();
    }
    return;
  }
  ADD_FAILURE() << "no error";
}

}  // namespace lockstep::test
