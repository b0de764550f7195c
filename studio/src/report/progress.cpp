#include "lockstep/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <utility>

#include "base/poll.h"
#include "base/printable.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "report/progress_text.h"

namespace lockstep::report {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::string_view kErase = "\r\033[K";

bool is_terminal(int fd) {
  return ::isatty(fd) == 1 && Environment::of_process().get("TERM") != "dumb";
}

// What the C library would take for the encoding of text.
bool is_utf8_locale() {
  const Environment environment = Environment::of_process();
  auto locale = environment.get("LC_ALL");
  if (!locale) locale = environment.get("LC_CTYPE");
  if (!locale) locale = environment.get("LANG");
  std::string letters;
  for (const char c : locale.value_or("")) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) letters += static_cast<char>(std::tolower(c));
  }
  return letters.find("utf8") != std::string::npos;
}

int terminal_columns(int fd) {
  constexpr int kUsual = 80;
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

// A reader that does not read for a second loses the rest: progress must not stop the training.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      const auto ready = poll_until(fd, POLLOUT, Deadline::after(std::chrono::seconds(1)));
      if (!ready.ok() || !ready.value()) return;
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

class Progress::Line {
 public:
  explicit Line(ProgressOptions options)
      : options_(std::move(options)),
        terminal_(options_.terminal.value_or(is_terminal(options_.fd))),
        unicode_(options_.unicode.value_or(is_utf8_locale())) {
    pass_.epochs = options_.epochs;
    if (terminal_) {
      log::set_output([this](std::string_view line) { print(line); });
    }
  }
  ~Line() {
    if (!origin_.is_this_process()) return;
    if (terminal_) log::set_output({});
    const MutexLock lock(mutex_);
    erase();
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void begin(std::string_view pass, std::int64_t epoch, std::int64_t steps, std::int64_t done) {
    const MutexLock lock(mutex_);
    const Clock::time_point time = now();
    // An epoch is all from the beginning of its first pass to that of the next epoch.
    if (!epoch_began_ || epoch != pass_.epoch) {
      if (epoch_began_ && epoch == pass_.epoch + 1) pass_.epoch_seconds = seconds_between(*epoch_began_, time);
      epoch_began_ = time;
    }
    pass_ = {.name = std::string(pass),
             .epoch = epoch,
             .epochs = options_.epochs,
             .steps = steps,
             .done = done,
             .done_before = done,
             .seconds_before = seconds_between(*epoch_began_, time),
             .epoch_seconds = pass_.epoch_seconds};
    began_ = printed_ = time;
    under_way_ = true;
    if (terminal_) draw();
  }

  void step(std::int64_t samples, std::optional<double> loss, const PartTimes& times) {
    const MutexLock lock(mutex_);
    ++pass_.done;
    pass_.samples += samples;
    pass_.times += times;
    if (loss) {
      // A step without samples has a loss too.
      const std::int64_t weight = std::max<std::int64_t>(1, samples);
      pass_.weighted_loss += *loss * static_cast<double>(weight);
      pass_.loss_samples += weight;
    }
    const Clock::time_point time = now();
    if (!under_way_ || time - printed_ < (terminal_ ? Clock::duration(kRedraw) : Clock::duration(options_.interval)))
      return;
    printed_ = time;
    if (terminal_) return draw();
    pass_.seconds = seconds_since(began_);
    write_all(options_.fd, plain_line(pass_) + "\n");
  }

  void end(std::string_view results) {
    const MutexLock lock(mutex_);
    if (!under_way_) return;
    under_way_ = false;
    pass_.seconds = seconds_since(began_);
    erase();
    write_all(options_.fd, end_line(pass_, printable(results)) + "\n");
  }

  // `line` may end in a newline.
  void print(std::string_view line) {
    if (!origin_.is_this_process()) return;
    if (line.ends_with('\n')) line.remove_suffix(1);
    const MutexLock lock(mutex_);
    const bool was_drawn = drawn_;
    write_all(options_.fd, (was_drawn ? std::string(kErase) : std::string()) + std::string(line) + "\n");
    drawn_ = false;
    if (was_drawn) draw();
  }

 private:
  Clock::time_point now() const { return options_.clock ? options_.clock() : Clock::now(); }
  static double seconds_between(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
  }
  double seconds_since(Clock::time_point then) const { return seconds_between(then, now()); }

  void draw() LOCKSTEP_REQUIRES(mutex_) {
    pass_.seconds = seconds_since(began_);
    // A terminal goes to the next line when its last column is written.
    const int columns = std::max(1, options_.columns.value_or(terminal_columns(options_.fd)) - 1);
    write_all(options_.fd, std::string(kErase) + bar_line(pass_, columns, unicode_));
    drawn_ = true;
  }
  void erase() LOCKSTEP_REQUIRES(mutex_) {
    if (drawn_) write_all(options_.fd, kErase);
    drawn_ = false;
  }

  const ProgressOptions options_;
  const bool terminal_;
  const bool unicode_;
  Origin origin_;
  Mutex mutex_;  // messages come from any thread
  PassState pass_ LOCKSTEP_GUARDED_BY(mutex_);
  bool under_way_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool drawn_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  Clock::time_point began_ LOCKSTEP_GUARDED_BY(mutex_) = {};
  Clock::time_point printed_ LOCKSTEP_GUARDED_BY(mutex_) = {};
  std::optional<Clock::time_point> epoch_began_ LOCKSTEP_GUARDED_BY(mutex_);
};

Progress::Progress(ProgressOptions options) {
  if (options.shown) line_ = std::make_unique<Line>(std::move(options));
}
Progress::~Progress() = default;
Progress::Progress(Progress&&) noexcept = default;

void Progress::begin(std::string_view pass, std::int64_t epoch, std::int64_t steps, std::int64_t done) {
  if (line_ != nullptr) line_->begin(pass, epoch, steps, done);
}

void Progress::step(std::int64_t samples, std::optional<double> loss, const PartTimes& times) {
  if (line_ != nullptr) line_->step(samples, loss, times);
}

void Progress::end(std::string_view results) {
  if (line_ != nullptr) line_->end(results);
}

void Progress::print(std::string_view line) {
  if (line_ != nullptr) line_->print(printable(line));
}

}  // namespace lockstep::report
