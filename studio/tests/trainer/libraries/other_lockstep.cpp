// A shared object with a model, of an earlier Lockstep: it does not say how large its ModelRequest is.
extern "C" const char* lockstep_model_torch_version() {
  return LOCKSTEP_TEST_LIBTORCH;
}
extern "C" void lockstep_make_model(const void* /*request*/, void* /*model*/) {}
