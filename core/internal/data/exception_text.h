// The reason in errors that wrap whatever a user's dataset throws.
#pragma once

#include <exception>
#include <string>

namespace lockstep::data {

// The text of the exception that is being handled.
inline std::string current_exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "it threw an object that is not a std::exception";
  }
}

}  // namespace lockstep::data
