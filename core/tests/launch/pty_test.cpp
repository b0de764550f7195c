#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "launch/output/background_writer.h"
#include "launch/output/console.h"
#include "launch/output/worker_stream.h"

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

class PtyTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<Pty> made = open_pty();
    ASSERT_TRUE(made.ok()) << "this test needs a pseudo-terminal: " << made.status().message();
    pty_ = std::move(made.value());
  }

  Pty pty_;
};

TEST_F(PtyTest, BytesPassUnchanged) {
  EXPECT_EQ(isatty(pty_.writer.get()), 1);
  std::string bytes;
  for (int i = 0; i < 1 << 20; ++i) bytes += static_cast<char>(i * 7 + i / 256);
  std::thread writer([&] {
    write_all(pty_.writer.get(), bytes);
    pty_.writer.reset();
  });
  EXPECT_TRUE(read_to_the_end(pty_.reader.get()) == bytes);
  writer.join();
}

TEST_F(PtyTest, WhatIsWrittenBeforeTheEndIsStillRead) {
  write_all(pty_.writer.get(), "the last line\n");
  pty_.writer.reset();
  EXPECT_EQ(read_to_the_end(pty_.reader.get()), "the last line\n");
}

TEST_F(PtyTest, ManyLinesOfTheCLibraryComeInOrderAndEachAtItsEnd) {
  constexpr int kLines = 20'000;
  std::FILE* const file = fdopen(pty_.writer.get(), "w");
  ASSERT_NE(file, nullptr);
  static_cast<void>(pty_.writer.release());
  std::fputs("a line\nand a half", file);
  std::array<char, 64> first{};
  EXPECT_EQ(read(pty_.reader.get(), first.data(), first.size()), 7);  // the half waits in the library's buffer
  std::thread writer([file] {
    std::fputc('\n', file);
    for (int i = 0; i < kLines; ++i) std::fprintf(file, "%d\n", i);
    std::fclose(file);
  });
  std::string expected = "and a half\n";
  for (int i = 0; i < kLines; ++i) expected += std::to_string(i) + "\n";
  EXPECT_TRUE(read_to_the_end(pty_.reader.get()) == expected);
  writer.join();
}

TEST_F(PtyTest, AWriteToNobodyIsAnErrorWithoutASignal) {
  pty_.reader.reset();
  EXPECT_EQ(write(pty_.writer.get(), "x", 1), -1);
  EXPECT_EQ(errno, EIO);
}

TEST_F(PtyTest, NoProgramInheritsIt) {
  for (const Fd* fd : {&pty_.reader, &pty_.writer}) EXPECT_EQ(fcntl(fd->get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(PtyTest, OnlyWhatIsWrittenAfterTheConsolesReaderHasLeftIsInVain) {
  std::array<int, 2> ends{-1, -1};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  Fd consoles_reader(ends[0]);
  const Fd consoles_end(ends[1]);
  Console console(BackgroundWriter::start(consoles_end.get()).value(), false);
  WorkerStream stream(std::move(pty_.reader), nullptr,
                      {.console = &console, .close_with_console = true, .terminal = true});
  write_all(pty_.writer.get(), "early\n");
  consoles_reader.reset();
  console.say("to nobody");
  console.flush();
  while (!console.closed()) std::this_thread::yield();
  EXPECT_TRUE(stream.wants_read());
  EXPECT_FALSE(stream.read_some());
  EXPECT_FALSE(stream.written_in_vain());
  write_all(pty_.writer.get(), "late\n");
  EXPECT_TRUE(stream.wants_read());
  EXPECT_TRUE(stream.read_some());
  EXPECT_TRUE(stream.written_in_vain());
  stream.told();
  EXPECT_FALSE(stream.written_in_vain());
}

}  // namespace
}  // namespace lockstep::launch
