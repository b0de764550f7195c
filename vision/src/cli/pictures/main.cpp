// The program behind `lockstep pack` and `lockstep data`. `lockstep` executes it for these commands, so the launcher
// does not load the image libraries. Exit codes: 0; 1 for findings or a failure; 2 for wrong usage.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>

#include "base/printable.h"
#include "base/standard_descriptors.h"
#include "lockstep/image/decode.h"
#include "lockstep/picture_tools/pack.h"
#include "options/command.h"
#include "picture_tools/check_folder.h"
#include "picture_tools/preview.h"

namespace lockstep::cli {
namespace {

struct PackArguments {
  std::string folder;
  std::string file;
  data::PackOptions options;
};

struct PreviewArguments {
  std::string folder;
  std::string out = "preview.html";
  std::string transforms = "reference";
  int size = 224;
  std::int64_t seed = 0;
  data::PreviewOptions options;
};

struct CheckArguments {
  std::string path;
  data::CheckOptions options;
};

constexpr int kMostNumber = std::numeric_limits<int>::max();

// Prints one line. All output with names from outside goes through here: they are escaped.
template <typename... Values>
void print_line(std::FILE* file, fmt::format_string<Values...> format, Values&&... values) {
  fmt::print(file, "{}\n", printable(fmt::format(format, std::forward<Values>(values)...)));
}

int fail(const Status& status) {
  return options::fail(Status(status.code(), printable(status.message())));
}

data::Compose transforms_named(const std::string& name, int size) {
  using namespace data;  // NOLINT(google-build-using-namespace)
  if (name == "none") return Compose({Resize{size}, CenterCrop{size}});
  if (name == "crop-flip") return Compose({RandomResizedCrop{size}, RandomHorizontalFlip{}});
  return Compose({RandomResizedCrop{size}, RandomHorizontalFlip{}, RandomVerticalFlip{}, RandomRotation{45},
                  RandomAffine{45}, ColorJitter{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1}});
}

constexpr std::string_view word_for(data::FindingKind kind) {
  switch (kind) {
    case data::FindingKind::kCorrupt: return "corrupt";
    case data::FindingKind::kTiny: return "tiny";
    case data::FindingKind::kDuplicate: return "duplicate";
  }
  return "";
}

int check_pack(const std::string& path) {
  const Result<data::PackReader> pack = data::PackReader::open(path);
  if (!pack.ok()) return fail(pack.status());
  std::int64_t bad = 0;
  for (std::int64_t i = 0; i < pack.value().size(); ++i) {
    Status status = pack.value().verify(i);
    if (status.ok()) status = data::decode_image(pack.value().bytes(i), {.strict = true}).status();
    if (status.ok()) continue;
    ++bad;
    print_line(stdout, "corrupt: {}: {}", pack.value().name(i), status.message());
  }
  print_line(stdout, "{} pictures of {} classes: {} corrupt", pack.value().size(), pack.value().classes().size(), bad);
  return bad == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int run_pack(const PackArguments& arguments) {
  const bool show = ::isatty(STDERR_FILENO) != 0;
  const auto progress = [&](std::int64_t done, std::int64_t of) {
    if (show) fmt::print(stderr, "\r{} of {} pictures{}", done, of, done == of ? "\n" : "");
  };
  const Result<data::PackSummary> packed =
      data::pack_folder(arguments.folder, arguments.file, arguments.options, progress);
  if (!packed.ok()) return fail(packed.status());
  const data::PackSummary& summary = packed.value();
  for (const std::string& left_out : summary.left_out) print_line(stdout, "left out: {}", left_out);
  print_line(stdout, "{}: {} pictures of {} classes, {} made smaller, {} left out; {:.1f} MB, before {:.1f} MB",
             arguments.file, summary.pictures, summary.classes, summary.resized, summary.left_out.size(),
             static_cast<double>(summary.bytes_after) / 1e6, static_cast<double>(summary.bytes_before) / 1e6);
  return EXIT_SUCCESS;
}

int run_preview(const PreviewArguments& arguments) {
  std::string ending = std::filesystem::path(arguments.out).extension();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  if (ending != ".html") {
    return fail(Status(ErrorCode::kInvalidArgument,
                       fmt::format("--out: expected a name that ends with .html, found {}", arguments.out)));
  }
  data::PreviewOptions options = arguments.options;
  options.seed = static_cast<std::uint64_t>(arguments.seed);
  const Result<data::PreviewSummary> written = data::write_preview(
      arguments.folder, arguments.out, transforms_named(arguments.transforms, arguments.size), options);
  if (!written.ok()) return fail(written.status());
  for (const std::string& left_out : written.value().left_out) print_line(stdout, "left out: {}", left_out);
  print_line(stdout, "{}: {} samples", arguments.out, written.value().samples);
  return EXIT_SUCCESS;
}

int run_check(const CheckArguments& arguments) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(arguments.path, ignored)) return check_pack(arguments.path);
  const Result<data::FolderReport> report = data::check_folder(arguments.path, arguments.options);
  if (!report.ok()) return fail(report.status());
  std::array<std::int64_t, 3> counts{};
  for (const data::Finding& finding : report.value().findings) {
    ++counts[static_cast<std::size_t>(finding.kind)];
    print_line(stdout, "{}: {}: {}", word_for(finding.kind), finding.path, finding.detail);
  }
  print_line(stdout, "{} pictures of {} classes: {} corrupt, {} tiny, {} duplicate", report.value().pictures,
             report.value().classes, counts[0], counts[1], counts[2]);
  return report.value().findings.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

constexpr const char* kFolder = "Folder with a subfolder of pictures for each class";
constexpr const char* kThreads = "0: one for each core";

// The arguments of the add_... functions must outlive the commands.
void add_pack(options::Command& app, PackArguments& a) {
  const auto& command =
      app.add("pack", "Put a folder of class folders into one file, for PackedImages", [&] { return run_pack(a); });
  command.key("FOLDER", a.folder, kFolder).word();
  command.key("FILE", a.file, "The pack to write; replaced when it is complete").word();
  command
      .key("resize", a.options.shorter_side,
           "Make pictures smaller whose shorter side is longer than this, as JPEG. 0: the files' own bytes")
      .between(0, kMostNumber);
  command.key("quality", a.options.quality, "Quality of these JPEGs").between(1, 100);
  command.key("threads", a.options.threads, kThreads).between(0, kMostNumber);
  command.key("skip_corrupt", a.options.skip_corrupt, "Leave out pictures that cannot be decoded, and say which");
}

void add_preview(options::Command& data, PreviewArguments& a) {
  const auto& command = data.add("preview", "Write a page of augmented samples (HTML)", [&] { return run_preview(a); });
  command.key("FOLDER", a.folder, kFolder).word();
  command.key("out", a.out, "The page to write: an HTML file");
  command.key("transforms", a.transforms, "reference (crop, flips, rotation, affine, colours), crop-flip or none")
      .choices({"reference", "crop-flip", "none"});
  command.key("size", a.size, "Side of a sample, pixels").between(1, 4096);
  command.key("samples", a.options.samples, "Of all classes in turn").between(1, 10000);
  command.key("cell", a.options.cell, "Longer side of a picture on the page, pixels").between(8, 2000);
  command.key("epochs", a.options.epochs, "Show each sample as in this many epochs").between(1, 1000);
  command.key("seed", a.seed, "The loader's seed").at_least(0);
}

void add_check(options::Command& data, CheckArguments& a) {
  const auto& command = data.add("check", "Find corrupt, tiny and duplicate pictures", [&] { return run_check(a); });
  command.key("PATH", a.path, "Folder with a subfolder of pictures for each class, or a pack").word();
  command.key("least_side", a.options.least_side, "Pictures with a shorter side than so many pixels are tiny")
      .between(0, kMostNumber);
  command.key("threads", a.options.threads, kThreads).between(0, kMostNumber);
}

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  using namespace lockstep::cli;  // NOLINT(google-build-using-namespace)
  lockstep::options::Command app{.name = "lockstep", .help = "Pictures for training: packs, previews, checks."};
  PackArguments pack;
  PreviewArguments preview;
  CheckArguments check;
  add_pack(app, pack);
  lockstep::options::Command& data = app.add("data", "Look at a folder of class folders");
  add_preview(data, preview);
  add_check(data, check);
  return lockstep::options::run(app, {argv + 1, argv + argc});
}
