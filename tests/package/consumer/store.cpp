// A program that uses the layers without LibTorch.
#include <lockstep/store/hash_store.h>

#include <cstdio>

int main() {
  lockstep::comm::HashStore store;
  if (!store.set("key", "value").ok()) return 1;
  std::printf("%d\n", static_cast<int>(store.num_keys().value()));
}
