#include <lockstep/base/status.h>

#include <cstdio>

int main() {
  const lockstep::Status status(lockstep::ErrorCode::kNotFound, "a message");
  std::printf("%s: %s\n", std::string(lockstep::to_string(status.code())).c_str(), status.message().c_str());
  return status.ok() ? 1 : 0;
}
