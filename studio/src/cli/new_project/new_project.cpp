#include "cli/new_project/new_project.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 32;
constexpr int kTrainPictures = 24;  // of each class
constexpr int kTestPictures = 8;
constexpr std::array<std::string_view, 3> kClasses = {"circle", "cross", "square"};

Status system_error(std::string_view what, const fs::path& path, const std::error_code& error) {
  return Status::from_errno(fmt::format("{} {}", what, path.native()), error.value());
}

Status check_name(const fs::path& folder) {
  const std::string name = folder.filename();
  const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
  if (!name.empty() && std::isalpha(static_cast<unsigned char>(name[0])) != 0 &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return {};
  }
  return Status(
      ErrorCode::kInvalidArgument,
      fmt::format("new: expected a name of letters, digits, '-' and '_' that begins with a letter, found '{}'", name));
}

Status write_file(const fs::path& path, std::string_view bytes) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return system_error("cannot make the folder", path.parent_path(), error);
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) return Status::from_errno(fmt::format("cannot write {}", path.native()), errno != 0 ? errno : EIO);
  return {};
}

// As Kubernetes wants names: small letters, digits and '-', which is not at the end.
std::string label_of(std::string name) {
  for (char& c : name) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  while (name.ends_with('-')) name.pop_back();
  return name;
}

void replace_all(std::string& text, std::string_view place, const std::string& name) {
  for (std::size_t at = text.find(place); at != std::string::npos; at = text.find(place, at + name.size())) {
    text.replace(at, place.size(), name);
  }
}

std::string with_name(std::string text, const std::string& name) {
  replace_all(text, "@NAME@", name);
  replace_all(text, "@LABEL@", label_of(name));
  return text;
}

Status copy_template(const fs::directory_entry& entry, const fs::path& templates, const fs::path& folder,
                     const std::string& name) {
  std::error_code error;
  const bool is_file = entry.is_regular_file(error);
  if (error) return system_error("cannot read", entry.path(), error);
  if (!is_file) return {};
  std::ifstream file(entry.path(), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return Status(ErrorCode::kIo, fmt::format("cannot read {}", entry.path().native()));
  // "gitignore" is one without its dot in the package, where it would hide files.
  fs::path place = entry.path().lexically_relative(templates);
  if (place == "gitignore") place = ".gitignore";
  LOCKSTEP_RETURN_IF_ERROR(write_file(folder / place, with_name(text, name)));
  if (place.extension() != ".sh") return {};
  fs::permissions(folder / place, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add, error);
  return error ? system_error("cannot make executable", folder / place, error) : Status();
}

Status copy_templates(const fs::path& templates, const fs::path& folder, const std::string& name) {
  std::error_code error;
  fs::recursive_directory_iterator entry(templates, error);
  // Not a range-for, which throws. After an error the iterator is at its end.
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    LOCKSTEP_RETURN_IF_ERROR(copy_template(*entry, templates, folder, name));
  }
  return error ? system_error("cannot read", templates, error) : Status();
}

// As well as it goes: the caller has an error already, and tells that one.
void remove_content(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> content;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    content.push_back(entry->path());
  }
  for (const fs::path& path : content) fs::remove_all(path, error);
}

// The same pictures everywhere.
class Random {
 public:
  explicit Random(std::uint32_t seed) : state_(seed * 2654435761U + 1) {}
  int below(int end) {
    state_ = state_ * 1664525U + 1013904223U;
    return static_cast<int>((state_ >> 8) % static_cast<std::uint32_t>(end));
  }

 private:
  std::uint32_t state_;
};

bool covers(std::size_t shape, int x, int y, int radius) {
  if (shape == 0) return x * x + y * y <= radius * radius;
  if (shape == 1)
    return (std::abs(x) <= radius / 3 || std::abs(y) <= radius / 3) && std::max(std::abs(x), std::abs(y)) <= radius;
  return std::max(std::abs(x), std::abs(y)) <= radius;
}

// A shape on a noisy ground, as a PPM file.
std::string picture(std::size_t shape, int number) {
  Random random(static_cast<std::uint32_t>(number) * 3 + static_cast<std::uint32_t>(shape));
  const int radius = 7 + random.below(5);
  const int x0 = radius + random.below(kSide - 2 * radius);
  const int y0 = radius + random.below(kSide - 2 * radius);
  const std::array<int, 3> color{120 + random.below(136), 120 + random.below(136), 120 + random.below(136)};
  std::string bytes = fmt::format("P6\n{} {}\n255\n", kSide, kSide);
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      for (const int level : color) {
        const int ground = random.below(80);
        bytes.push_back(static_cast<char>(covers(shape, x - x0, y - y0, radius) ? level - ground / 4 : ground));
      }
    }
  }
  return bytes;
}

Status draw_pictures(const fs::path& folder) {
  for (std::size_t shape = 0; shape < kClasses.size(); ++shape) {
    for (int number = 0; number < kTrainPictures + kTestPictures; ++number) {
      const fs::path place = folder / (number < kTrainPictures ? "train" : "test") / kClasses[shape];
      LOCKSTEP_RETURN_IF_ERROR(write_file(place / fmt::format("{:02}.ppm", number), picture(shape, number)));
    }
  }
  return {};
}

}  // namespace

fs::path project_templates(const fs::path& program_folder) {
  return program_folder.parent_path() / "share" / "lockstep" / "templates" / "project";
}

Status new_project(const fs::path& templates, const fs::path& given) {
  fs::path folder = given.has_filename() ? given : given.parent_path();  // without a slash at the end
  LOCKSTEP_RETURN_IF_ERROR(check_name(folder));
  std::error_code error;
  // "missing/../name" is not there before "missing" is made, and then it is "name", which may be somebody's project.
  if (folder.has_parent_path()) folder = fs::weakly_canonical(folder.parent_path(), error) / folder.filename();
  if (error) return system_error("new: cannot find the folder of", given, error);
  if (!fs::is_directory(templates, error)) {
    return Status(
        ErrorCode::kNotFound,
        fmt::format("new: the templates are not there: {}; they are installed with the program", templates.native()));
  }
  const fs::file_status found = fs::symlink_status(folder, error);
  if (found.type() == fs::file_type::none) return system_error("new: cannot look for", folder, error);
  const bool was_there = fs::exists(found);
  if (was_there && (!fs::is_directory(folder, error) || !fs::is_empty(folder, error) || error)) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("new: {} is there already, and not an empty folder; choose another name", folder.native()));
  }
  Status status = copy_templates(templates, folder, folder.filename());
  if (status.ok()) status = draw_pictures(folder / "data" / "pictures");
  if (status.ok()) return status;
  if (was_there) {
    remove_content(folder);
  } else {
    fs::remove_all(folder, error);
  }
  return status.with_context("new");
}

}  // namespace lockstep::cli
