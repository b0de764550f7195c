// Code of docs/configuration.md and of lockstep/config/schema.h, as it stands there.
#include <lockstep/config/command_line.h>

#include <cstdio>
#include <string>

namespace lockstep {
namespace {

[[maybe_unused]] Status from_header() {
  struct Options {
    int max_epochs = 10;
    double learning_rate = 0.1;
    std::string precision = "fp32";
  } options;
  config::Schema schema;
  config::Section trainer = schema.section("trainer", "How the model is trained");
  trainer.key("max_epochs", options.max_epochs, "Passes over the data").at_least(1);
  trainer.key("learning_rate", options.learning_rate, "The first rate").environment("LR");
  trainer.key("precision", options.precision, "Type of the forward pass").choices({"fp32", "bf16"});
  const auto status = schema.read({.file = "config.yaml", .environment = Environment::of_process()});
  return status;
}

}  // namespace
}  // namespace lockstep

namespace {

template <typename Options>
void train(const Options& /*options*/) {}

}  // namespace

struct Options {
  int max_epochs = 10;
  double learning_rate = 0.1;
};

int main(int argc, char** argv) {
  Options options;
  lockstep::config::Schema schema;
  lockstep::config::Section trainer = schema.section("trainer", "How the model is trained");
  trainer.key("max_epochs", options.max_epochs, "Passes over the data").at_least(1);
  trainer.key("learning_rate", options.learning_rate, "The first rate").at_least(0).environment("LR");
  schema.ignore_section("launch");
  const auto configured = lockstep::config::configure(schema, argc, argv);
  if (!configured.ok()) {
    std::fprintf(stderr, "%s\n", configured.status().message().c_str());
    return 2;
  }
  if (!configured.value()) return 0;  // --help or --print-config
  train(options);
}
