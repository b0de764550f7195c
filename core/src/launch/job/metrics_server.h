// Answers HTTP requests for the job's numbers. Anybody who reaches the port may ask, so time, memory and connections
// are bounded. It runs in the launcher's loop and never blocks.
#pragma once

#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

class MetricsServer {
 public:
  // Port 0: the kernel chooses. kUnavailable: the port is in use; kInvalidArgument: no address of this machine.
  static Result<std::unique_ptr<MetricsServer>> listen(const std::string& address, int port);

  // "http://127.0.0.1:9400/metrics".
  const std::string& url() const { return url_; }
  void add_to(std::vector<pollfd>& polled) const;
  Deadline next_due() const;
  // Handles what has come. `text` makes the answer to GET /metrics.
  void serve(const std::function<std::string()>& text);

 private:
  struct Connection {
    Fd fd;
    Deadline until;
    std::string request;
    std::string answer;  // empty: the request is not complete
    std::size_t sent = 0;
  };

  MetricsServer(Fd listener, std::string url) : listener_(std::move(listener)), url_(std::move(url)) {}
  void accept_new();
  // False: the connection is over.
  static bool read(Connection& connection, const std::function<std::string()>& text);
  static bool write(Connection& connection);

  Fd listener_;
  std::string url_;
  Deadline accept_again_ = Deadline::never();  // after the process had no descriptor for a connection
  std::vector<Connection> connections_;
};

}  // namespace lockstep::launch
