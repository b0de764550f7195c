#include "launch/standby/program_note.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/arithmetic.h"
#include "launch/standby/hook.h"
#include "lockstep/base/fd.h"

namespace lockstep::launch {
namespace {

using FileHeader = ElfW(Ehdr);
using Segment = ElfW(Phdr);
using NoteHeader = ElfW(Nhdr);

constexpr std::size_t kMostSegments = 1024;
constexpr std::size_t kMostNoteBytes = std::size_t{64} << 10;
constexpr unsigned char kOwnClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;

// Empty: the file is shorter.
std::string read_at(int fd, std::size_t size, std::size_t offset) {
  std::string bytes(size, '\0');
  const ssize_t count = pread(fd, bytes.data(), size, static_cast<off_t>(offset));
  return count == static_cast<ssize_t>(size) ? bytes : std::string();
}

template <typename T>
std::optional<T> value_at(std::string_view bytes, std::size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

bool has_note(std::string_view notes, std::size_t alignment) {
  constexpr std::string_view kOwner(kStandbyNoteOwner, sizeof kStandbyNoteOwner);  // with its NUL
  for (std::size_t at = 0; const auto note = value_at<NoteHeader>(notes, at);) {
    const std::size_t name = at + sizeof(NoteHeader);
    const std::size_t value = name + round_up<std::size_t>(note->n_namesz, alignment);
    if (value > notes.size()) return false;
    if (note->n_type == kStandbyNoteType && notes.substr(name, note->n_namesz) == kOwner &&
        note->n_descsz == sizeof kStandbyProtocol) {
      return value_at<std::uint32_t>(notes, value) == kStandbyProtocol;
    }
    at = value + round_up<std::size_t>(note->n_descsz, alignment);
  }
  return false;
}

}  // namespace

bool ProgramFile::operator==(const ProgramFile& other) const {
  return device == other.device && inode == other.inode && size == other.size &&
         changed.tv_sec == other.changed.tv_sec && changed.tv_nsec == other.changed.tv_nsec;
}

std::optional<ProgramFile> program_file(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return ProgramFile{info.st_dev, info.st_ino, info.st_size, info.st_mtim};
}

bool has_standby_hook(const std::string& path) {
  // A named pipe must not block.
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return false;
  const auto header = value_at<FileHeader>(read_at(file.get(), sizeof(FileHeader), 0), 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != kOwnClass ||
      header->e_phentsize != sizeof(Segment) || header->e_phnum > kMostSegments) {
    return false;
  }
  const std::string segments = read_at(file.get(), header->e_phnum * sizeof(Segment), header->e_phoff);
  for (std::size_t i = 0; i < header->e_phnum; ++i) {
    const auto segment = value_at<Segment>(segments, i * sizeof(Segment));
    if (!segment || segment->p_type != PT_NOTE || segment->p_filesz > kMostNoteBytes) continue;
    if (has_note(read_at(file.get(), segment->p_filesz, segment->p_offset), segment->p_align == 8 ? 8 : 4)) return true;
  }
  return false;
}

}  // namespace lockstep::launch
