#include "slurm_cluster.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>
#include <stdexcept>
#include <thread>

namespace lockstep::test {
namespace {

constexpr int kLogin = 0;
const std::string kRoot = LOCKSTEP_SLURM;
const std::string kLibraries = kRoot + "/usr/lib/x86_64-linux-gnu";
constexpr auto kPatience = std::chrono::seconds(90);

std::string name_of(int machine) {
  return machine == kLogin ? "login" : fmt::format("node{}", machine);
}

Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

std::string random_bytes(std::size_t count) {
  std::random_device random;
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(random());
  return bytes;
}

constexpr const char* kConfiguration = R"(ClusterName=test
SlurmctldHost=login({login})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
PluginDir={libraries}/slurm-wlm
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
)";

}  // namespace

SlurmCluster::SlurmCluster(int nodes) : machines_(nodes + 1) {
  const std::string folder = folder_.path().native();
  write_configuration(nodes);
  const std::string programs = std::filesystem::path(LOCKSTEP_PROGRAM).parent_path();
  environment_ = {"SLURM_CONF=" + folder + "/slurm.conf", "LD_LIBRARY_PATH=" + kLibraries + "/slurm-wlm:" + kLibraries,
                  "HOME=" + folder + "/home",
                  "XDG_STATE_HOME=", "PATH=" + programs + ":" + kRoot + "/usr/bin:/usr/bin:/bin:/usr/sbin:/sbin"};
  start_daemon(kLogin, {kRoot + "/usr/sbin/munged", "--foreground", "--force", "--key-file=" + folder + "/munge.key",
                        "--socket=" + folder + "/munge.socket", "--pid-file=" + folder + "/munged.pid",
                        "--log-file=" + folder + "/munged.log", "--seed-file=" + folder + "/munge.seed"});
  const bool munge = wait_for([&] { return std::filesystem::exists(folder + "/munge.socket"); }, kPatience);
  if (!munge) throw std::runtime_error("munged does not come up:\n" + log());
  start_daemon(kLogin, {kRoot + "/usr/sbin/slurmctld-wlm", "-D", "-c"});
  for (int node = 1; node <= nodes; ++node) {
    start_daemon(node, {kRoot + "/usr/sbin/slurmd-wlm", "-D", "-c", "-d", kRoot + "/usr/sbin/slurmstepd-wlm"});
  }
  const std::string all_idle = fmt::format("idle {}\n", nodes);
  Finished state;
  const auto is_up = [&] { return (state = run({"sinfo", "-h", "-p", "all", "-o", "%T %D"})).out == all_idle; };
  if (!wait_for(is_up, kPatience)) {
    throw std::runtime_error("the nodes do not come up: " + state.out + state.err + "\n" + log());
  }
}

SlurmCluster::~SlurmCluster() {
  for (const auto& daemon : daemons_) ::kill(daemon->pid(), SIGKILL);
  for (const auto& daemon : daemons_) EXPECT_TRUE(daemon->wait_until_no_descendant());
  if (testing::Test::HasFailure()) std::fputs(log().c_str(), stderr);
}

void SlurmCluster::write_configuration(int nodes) const {
  for (const std::string place : {"state", "home"}) folder_.write(place + "/.keep", "");
  std::string hosts = "127.0.0.1 localhost\n";
  std::string lines;
  for (int machine = kLogin; machine <= nodes; ++machine) {
    hosts += fmt::format("{} {}\n", Machines::ipv4(machine), name_of(machine));
    if (machine == kLogin) continue;
    lines += fmt::format("NodeName={} NodeAddr={} CPUs=4\n", name_of(machine), Machines::ipv4(machine));
    folder_.write(fmt::format("spool-{}/.keep", name_of(machine)), "");
  }
  folder_.write("hosts", hosts);
  folder_.write("munge.key", random_bytes(1024));
  ::chmod(folder_.path("munge.key").c_str(), 0600);
  lines +=
      "PartitionName=all Nodes=ALL Default=YES PriorityTier=1 GraceTime=30\n"
      "PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF\n";
  folder_.write("slurm.conf",
                fmt::format(kConfiguration, fmt::arg("login", Machines::ipv4(kLogin)),
                            fmt::arg("folder", folder_.path().native()), fmt::arg("libraries", kLibraries)) +
                    lines);
}

void SlurmCluster::start_daemon(int machine, const Words& command) {
  const Words inside = {"unshare",       "--uts", "--mount", "--pid", "--fork", "--kill-child",
                        "--mount-proc",  "sh",    "-c",      kEnter,  "enter",  folder_.path("hosts"),
                        name_of(machine)};
  daemons_.push_back(std::make_unique<Process>(machines_.on(machine, Words{"env"} + environment_ + inside + command)));
}

std::unique_ptr<Process> SlurmCluster::start(const Words& command, const Words& environment) const {
  const Words inside = {"unshare",      "--uts", "--mount", "sh", "-c", kEnter, "enter", folder_.path("hosts"),
                        name_of(kLogin)};
  return std::make_unique<Process>(machines_.on(kLogin, Words{"env"} + environment_ + environment + inside + command));
}

Finished SlurmCluster::run(const Words& command, const Words& environment) const {
  return start(command, environment)->finish(kPatience);
}

std::string SlurmCluster::submit(const Words& words) const {
  const Finished end = run(Words{"sbatch", "--parsable"} + words);
  EXPECT_EQ(end.exit_code, 0) << end.err;
  return end.out.substr(0, end.out.find('\n'));
}

bool SlurmCluster::has_ended(const std::string& job) const {
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for those who ask again and again
  const Finished end = run({"squeue", "-h", "-j", job, "-o", "%T", "-t", "PENDING,RUNNING,COMPLETING,CONFIGURING"});
  return end.out.empty();
}

std::string SlurmCluster::log() const {
  std::string text;
  for (const auto& daemon : daemons_) text += daemon->out_so_far() + daemon->err_so_far();
  return text;
}

}  // namespace lockstep::test
