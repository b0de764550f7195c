// A shared object without a model.
extern "C" int no_model() {
  return 0;
}
