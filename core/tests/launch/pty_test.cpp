#include "launch/output/pty.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

namespace lockstep::launch {
namespace {

// Reads until the end, which is EIO.
std::string read_to_the_end(int fd) {
  std::string text;
  std::array<char, 65536> buffer;
  ssize_t size = 0;
  while ((size = read(fd, buffer.data(), buffer.size())) > 0)
    text.append(buffer.data(), static_cast<std::size_t>(size));
  EXPECT_TRUE(size < 0 && errno == EIO) << size << " " << errno;
  return text;
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = write(fd, bytes.data(), bytes.size());
    ASSERT_GT(size, 0);
    bytes.remove_prefix(static_cast<std::size_t>(size));
  }
}

TEST(Pty, BytesPassUnchanged) {
  Pty pty = open_pty().value();
  EXPECT_EQ(isatty(pty.writer.get()), 1);
  std::string bytes;
  for (int i = 0; i < 1 << 20; ++i) bytes += static_cast<char>(i * 7 + i / 256);
  std::thread writer([&] {
    write_all(pty.writer.get(), bytes);
    pty.writer.reset();
  });
  EXPECT_TRUE(read_to_the_end(pty.reader.get()) == bytes);
  writer.join();
}

TEST(Pty, WhatIsWrittenBeforeTheEndIsStillRead) {
  Pty pty = open_pty().value();
  write_all(pty.writer.get(), "the last line\n");
  pty.writer.reset();
  EXPECT_EQ(read_to_the_end(pty.reader.get()), "the last line\n");
}

TEST(Pty, ManyLinesOfTheCLibraryComeInOrderAndEachAtItsEnd) {
  constexpr int kLines = 400'000;
  Pty pty = open_pty().value();
  std::FILE* const file = fdopen(pty.writer.get(), "w");
  ASSERT_NE(file, nullptr);
  static_cast<void>(pty.writer.release());
  std::fputs("a line\nand a half", file);
  std::array<char, 64> first{};
  EXPECT_EQ(read(pty.reader.get(), first.data(), first.size()), 7);  // the half waits in the library's buffer
  std::thread writer([file] {
    std::fputc('\n', file);
    for (int i = 0; i < kLines; ++i) std::fprintf(file, "%d\n", i);
    std::fclose(file);
  });
  std::string expected = "and a half\n";
  for (int i = 0; i < kLines; ++i) expected += std::to_string(i) + "\n";
  EXPECT_TRUE(read_to_the_end(pty.reader.get()) == expected);
  writer.join();
}

TEST(Pty, AWriteToNobodyIsAnErrorWithoutASignal) {
  Pty pty = open_pty().value();
  pty.reader.reset();
  EXPECT_EQ(write(pty.writer.get(), "x", 1), -1);
  EXPECT_EQ(errno, EIO);
}

TEST(Pty, NoProgramInheritsIt) {
  const Pty pty = open_pty().value();
  for (const Fd* fd : {&pty.reader, &pty.writer}) EXPECT_EQ(fcntl(fd->get(), F_GETFD), FD_CLOEXEC);
}

}  // namespace
}  // namespace lockstep::launch
