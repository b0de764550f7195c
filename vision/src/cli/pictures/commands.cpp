#include "cli/pictures/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/printable.h"
#include "lockstep/image/decode.h"
#include "lockstep/picture_tools/pack.h"
#include "picture_tools/check_folder.h"
#include "picture_tools/preview.h"

namespace lockstep::cli {
namespace {

constexpr int kUsageError = 2;
// CLI::PositiveNumber and CLI::NonNegativeNumber show a bound of 309 digits in their messages.
constexpr int kMostNumber = std::numeric_limits<int>::max();

// Prints one line. All output with names from outside goes through here: they are escaped.
template <typename... Values>
void print_line(std::FILE* file, fmt::format_string<Values...> format, Values&&... values) {
  fmt::print(file, "{}\n", printable(fmt::format(format, std::forward<Values>(values)...)));
}

int fail(const Status& status) {
  print_line(stderr, "lockstep: {}", status.message());
  return status.code() == ErrorCode::kInvalidArgument ? kUsageError : EXIT_FAILURE;
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

}  // namespace

void add_pack_options(CLI::App& command, PackArguments& arguments) {
  command.add_option("FOLDER", arguments.folder, "Folder with a subfolder of pictures for each class")->required();
  command.add_option("FILE", arguments.file, "The pack to write; replaced when it is complete")->required();
  command
      .add_option(
          "--resize", arguments.resize,
          "Make pictures smaller whose shorter side is longer than this, as JPEG. Default: the files' own bytes")
      ->check(CLI::Range(1, kMostNumber));
  command.add_option("--quality", arguments.quality, "Quality of these JPEGs, 1 to 100. Default 90")
      ->check(CLI::Range(1, 100));
  command.add_option("--threads", arguments.threads, "Default: one for each core")->check(CLI::Range(1, kMostNumber));
  command.add_flag("--skip-corrupt", arguments.skip_corrupt,
                   "Leave out pictures that cannot be decoded, and say which");
}

void add_preview_options(CLI::App& command, PreviewArguments& arguments) {
  command.add_option("FOLDER", arguments.folder, "Folder with a subfolder of pictures for each class")->required();
  command.add_option("--out", arguments.out, "The page to write: an HTML file. Default preview.html")
      ->check([](const std::string& name) {
        std::string ending = std::filesystem::path(name).extension();
        std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
        return ending == ".html" ? "" : "expected a name that ends with .html, found " + printable(name);
      });
  command
      .add_option("--transforms", arguments.transforms,
                  "reference (crop, flips, rotation, affine, colours), crop-flip or none. Default reference")
      ->check(CLI::IsMember({"reference", "crop-flip", "none"}));
  command.add_option("--size", arguments.size, "Side of a sample, pixels. Default 224")->check(CLI::Range(1, 4096));
  command.add_option("--samples", arguments.samples, "Default 32, of all classes in turn")->check(CLI::Range(1, 10000));
  command.add_option("--cell", arguments.cell, "Longer side of a picture on the page, pixels. Default 160")
      ->check(CLI::Range(8, 2000));
  command.add_option("--epochs", arguments.epochs, "Show each sample as in this many epochs. Default 1")
      ->check(CLI::Range(1, 1000));
  command.add_option("--seed", arguments.seed, "The loader's seed. Default 0");
}

void add_check_options(CLI::App& command, CheckArguments& arguments) {
  command.add_option("PATH", arguments.path, "Folder with a subfolder of pictures for each class, or a pack")
      ->required();
  command
      .add_option("--least-side", arguments.least_side,
                  "Pictures with a shorter side than so many pixels are tiny. Default 32")
      ->check(CLI::Range(0, kMostNumber));
  command.add_option("--threads", arguments.threads, "Default: one for each core")->check(CLI::Range(1, kMostNumber));
}

int run_pack(const PackArguments& arguments) {
  const bool show = ::isatty(STDERR_FILENO) != 0;
  const auto progress = [&](std::int64_t done, std::int64_t of) {
    if (show) fmt::print(stderr, "\r{} of {} pictures{}", done, of, done == of ? "\n" : "");
  };
  const Result<data::PackSummary> packed = data::pack_folder(arguments.folder, arguments.file,
                                                             {.shorter_side = arguments.resize,
                                                              .quality = arguments.quality,
                                                              .threads = arguments.threads,
                                                              .skip_corrupt = arguments.skip_corrupt},
                                                             progress);
  if (!packed.ok()) return fail(packed.status());
  const data::PackSummary& summary = packed.value();
  for (const std::string& left_out : summary.left_out) print_line(stdout, "left out: {}", left_out);
  print_line(stdout, "{}: {} pictures of {} classes, {} made smaller, {} left out; {:.1f} MB, before {:.1f} MB",
             arguments.file, summary.pictures, summary.classes, summary.resized, summary.left_out.size(),
             static_cast<double>(summary.bytes_after) / 1e6, static_cast<double>(summary.bytes_before) / 1e6);
  return EXIT_SUCCESS;
}

int run_preview(const PreviewArguments& arguments) {
  const Result<data::PreviewSummary> written = data::write_preview(
      arguments.folder, arguments.out, transforms_named(arguments.transforms, arguments.size),
      {.samples = arguments.samples, .cell = arguments.cell, .seed = arguments.seed, .epochs = arguments.epochs});
  if (!written.ok()) return fail(written.status());
  for (const std::string& left_out : written.value().left_out) print_line(stdout, "left out: {}", left_out);
  print_line(stdout, "{}: {} samples", arguments.out, written.value().samples);
  return EXIT_SUCCESS;
}

int run_check(const CheckArguments& arguments) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(arguments.path, ignored)) return check_pack(arguments.path);
  const Result<data::FolderReport> report =
      data::check_folder(arguments.path, {.least_side = arguments.least_side, .threads = arguments.threads});
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

}  // namespace lockstep::cli
