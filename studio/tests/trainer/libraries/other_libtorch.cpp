// A shared object with a model, of another LibTorch, as its version says.
extern "C" const char* lockstep_model_torch_version() {
  return "1.13.1";
}
extern "C" void lockstep_make_model(const void* /*request*/, void* /*model*/) {}
