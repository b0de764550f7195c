// Compares names and shapes with torchvision, from the environment of the torch wheel.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <sstream>

#include "lockstep/nn/models/resnet.h"

namespace lockstep::models {
namespace {

std::string output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string output;
  char buffer[4096];
  while (const std::size_t size = std::fread(buffer, 1, sizeof(buffer), pipe.get())) output.append(buffer, size);
  return output;
}

// A line such as "conv1.weight 64 3 7 7 " for every parameter, then for every buffer.
std::string torchvisions_names(const std::string& model) {
  const std::string script = "import itertools, torchvision; m = torchvision.models." + model +
                             "(); print(''.join(n + ' ' + ''.join(f'{d} ' for d in t.shape) + chr(10) for n, t in "
                             "itertools.chain(m.named_parameters(), m.named_buffers())), end='')";
  return output_of("'" LOCKSTEP_PYTHON "' -c \"" + script + "\"");
}

std::string our_names(const ResNet& model) {
  std::ostringstream lines;
  for (const auto& tensors : {model->named_parameters(), model->named_buffers()}) {
    for (const auto& tensor : tensors) {
      lines << tensor.key() << ' ';
      for (const std::int64_t size : tensor.value().sizes()) lines << size << ' ';
      lines << '\n';
    }
  }
  return lines.str();
}

TEST(ResNetParity, NamesAndShapesAreTorchvisions) {
  EXPECT_EQ(our_names(resnet18()), torchvisions_names("resnet18"));
  EXPECT_EQ(our_names(resnet34()), torchvisions_names("resnet34"));
}

}  // namespace
}  // namespace lockstep::models
