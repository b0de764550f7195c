// A shared object that needs a function which the program's LibTorch does not have.
extern "C" void function_of_another_libtorch();
extern "C" const char* lockstep_model_torch_version() {
  function_of_another_libtorch();
  return "";
}
