// The program behind `lockstep checkpoint`. `lockstep` executes it for this command, so the launcher does not load
// LibTorch, which the readers of checkpoints need.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "base/printable.h"
#include "base/standard_descriptors.h"
#include "checkpoint/tools/tools.h"
#include "options/command.h"

namespace {

namespace checkpoint = lockstep::checkpoint;

constexpr int kUsageError = 2;
constexpr int kBad = 1;

struct Arguments {
  std::vector<std::string> files;
  std::string first;
  std::string second;
  checkpoint::ShowOptions show;
  checkpoint::ConvertOptions convert;
};

// All output goes through here: names from files are escaped.
void print_lines(const checkpoint::Lines& lines) {
  for (const std::string& line : lines) std::printf("%s\n", lockstep::printable(line).c_str());
}

int run_show(const Arguments& arguments) {
  print_lines(checkpoint::show(arguments.first, arguments.show));
  return EXIT_SUCCESS;
}

int run_verify(const Arguments& arguments) {
  bool good = true;
  for (const std::string& file : arguments.files) {
    const checkpoint::Verified verified = checkpoint::verify(file);
    print_lines(verified.lines);
    good = good && verified.good;
  }
  return good ? EXIT_SUCCESS : kBad;
}

int run_convert(const Arguments& arguments) {
  if (const std::string why = checkpoint::wrong_options(arguments.second, arguments.convert); !why.empty()) {
    std::fprintf(stderr, "lockstep: %s\n", lockstep::printable(why).c_str());
    return kUsageError;
  }
  print_lines(checkpoint::convert(arguments.first, arguments.second, arguments.convert));
  return EXIT_SUCCESS;
}

constexpr const char* kFile = "A file or folder";
constexpr const char* kIgnoreChecksum =
    "Read a safetensors file that another program has rewritten with the metadata of the former one";

void add_show(lockstep::options::Command& group, Arguments& a) {
  const auto& command = group.add("show", "Print what a file holds", [&] { return run_show(a); });
  command.key("FILE", a.first, kFile).word();
  command.key("entry", a.show.entry, "Show the value under this key of its dict alone");
  command.key("ignore_checksum", a.show.ignore_checksum, kIgnoreChecksum);
}

void add_verify(lockstep::options::Command& group, Arguments& a) {
  const auto& command =
      group.add("verify", "Read files completely and compare their checksums", [&] { return run_verify(a); });
  command.key("FILES", a.files, "Files or folders").word();
}

void add_convert(lockstep::options::Command& group, Arguments& a) {
  const auto& command = group.add("convert", "Write a file in another format", [&] { return run_convert(a); });
  command.key("FROM", a.first, kFile).word();
  command.key("TO", a.second, "The file to write: .safetensors, else one of torch.save").word();
  command.key("entry", a.convert.entry, "Convert the value under this key, such as model");
  command.key("dtype", a.convert.dtype, "Convert tensors of floating point: float16, bfloat16, ...");
  command.key("strip_prefix", a.convert.strip_prefix,
              "Take this off the names, such as module., and leave out names without it");
  command.key("add_prefix", a.convert.add_prefix, "Put this in front of the names");
  command.key("ignore_checksum", a.convert.ignore_checksum, kIgnoreChecksum);
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  lockstep::options::Command app{.name = "lockstep", .help = "Files of models and training runs."};
  lockstep::options::Command& group =
      app.add("checkpoint", "Files of torch.save, safetensors, checkpoints of Lockstep");
  Arguments arguments;
  add_show(group, arguments);
  add_verify(group, arguments);
  add_convert(group, arguments);
  group.add("export", "Write a trained model as TorchScript, and compare both");  // of the component studio
  return lockstep::options::run(app, {argv + 1, argv + argc});
}
