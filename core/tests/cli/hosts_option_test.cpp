// lockstep run --hosts, with a command in place of ssh.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "cli/nodes.h"
#include "launch/nodes/hosts_job.h"
#include "support/machines.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using launch::parse_hosts;

TEST(HostList, NamesAndNumbers) {
  const auto hosts = parse_hosts("a,user@b:4,10.0.0.7");
  ASSERT_TRUE(hosts.ok());
  ASSERT_EQ(hosts.value().size(), 3U);
  EXPECT_EQ(hosts.value()[0].workers, 0);
  EXPECT_EQ(hosts.value()[1].name, "user@b");
  EXPECT_EQ(hosts.value()[1].workers, 4);
  for (const char* wrong : {"", "a,", ",a", "a:0", "a:x", "a,a", "a:1,a:2", "-oProxyCommand=x,b", "@b", "a b", "a:"}) {
    EXPECT_EQ(parse_hosts(wrong).status().code(), ErrorCode::kInvalidArgument) << wrong;
  }
}

TEST(HostList, AddressesOfIpv6) {
  const auto hosts = parse_hosts("::1,fd00::2,[fd00::3],[fd00:0::4]:4,user@[fd00::5]:2,fe80::1%eth0");
  ASSERT_TRUE(hosts.ok()) << hosts.status().message();
  std::vector<std::pair<std::string, int>> found;
  for (const launch::Host& host : hosts.value()) found.emplace_back(host.name, host.workers);
  EXPECT_EQ(found,
            (std::vector<std::pair<std::string, int>>{
                {"::1", 0}, {"fd00::2", 0}, {"fd00::3", 0}, {"fd00::4", 4}, {"user@fd00::5", 2}, {"fe80::1%eth0", 0}}));
  EXPECT_TRUE(launch::is_this_machine("::1"));
  EXPECT_FALSE(launch::is_this_machine("2001:db8::2"));
  const std::pair<const char*, const char*> wrong[] = {
      {"fd00::zz", "an IPv6 address, in brackets if a number follows"},
      {"node7:4:2", "an IPv6 address, in brackets if a number follows"},
      {"[fd00::2", "']' behind the IPv6 address"},
      {"[node7]:4", "names and IPv4 addresses have none"},
      {"[10.0.0.7]", "names and IPv4 addresses have none"},
      {"[]:4", "an IPv6 address in the brackets"},
      {"[fd00::2]4", "nothing or ':' and a number behind ']'"},
      {"[fd00::2]:0", "a number of workers from 1"},
      {"[fd00::2]:", "a number of workers from 1"},
      {"fe80::1%", "an IPv6 address"},
      {"fd00::2,[fd00:0:0::2]:3", "'fd00::2' is there twice; [fd00::2]:2 means"},
      {"u@fd00::2,u@[fd00::2]", "'u@fd00::2' is there twice; u@[fd00::2]:2 means"},
      {"b,b", "'b' is there twice; b:2 means"}};
  for (const auto& [text, words] : wrong) {
    const Status status = parse_hosts(text).status();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_TRUE(contains(status.message(), words)) << text << ": " << status.message();
  }
}

TEST(HostList, WordsSurviveAShell) {
  const Words words{"printf", "%s|", "a b", "it's", "$HOME", "\"", "", "new\nline"};
  EXPECT_EQ(run_program({"sh", "-c", launch::quote_for_shell(words)}).out, "a b|it's|$HOME|\"||new\nline|");
}

TEST(HostList, WordsOfTheCommandForSsh) {
  EXPECT_EQ(launch::split_words(R"(ssh -o 'ProxyCommand nc %h' "a b\"c" d\ e '')").value(),
            (Words{"ssh", "-o", "ProxyCommand nc %h", "a b\"c", "d e", ""}));
  EXPECT_EQ(launch::split_words("ssh 'x").status().code(), ErrorCode::kInvalidArgument);
}

// A program that is called as ssh is: NAME COMMAND_LINE.
std::string fake_ssh(const ScratchFolder& folder, const std::string& body) {
  const std::string path = folder.path("fake_ssh");
  std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
  chmod(path.c_str(), 0755);
  return path;
}

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

Words on_hosts(const std::string& hosts, const std::string& ssh, const Words& rest) {
  return Words{LOCKSTEP_PROGRAM, "run", "--hosts", hosts, "--ssh", ssh} + rest;
}

TEST(HostsMulti, EachHostRunsALauncher) {
  const ScratchFolder folder;
  // It also tells whether the key is on a command line.
  const std::string ssh = fake_ssh(folder, "echo \"$@\" >> " + folder.path("lines") + "; cd /; exec sh -c \"$2\"");
  const Finished end = run_program(on_hosts("localhost,b:2", ssh,
                                            {"--nproc-per-node", "1", "sh", "-c",
                                             "echo $RANK $GROUP_RANK $WORLD_SIZE \"it's\" $(pwd); "
                                             "echo ${#LOCKSTEP_JOB_KEY} > " +
                                                 folder.path("key")}));
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(lines_of(end.out), (std::set<std::string>{"[rank 0]: 0 0 3 it's " + here, "[rank 1]: 1 1 3 it's " + here,
                                                      "[rank 2]: 2 1 3 it's " + here}));
  EXPECT_EQ(end.err, "");
  EXPECT_EQ(read_file(folder.path("key")), "64\n");
  EXPECT_EQ(read_file(folder.path("lines")).substr(0, 2), "b ");
}

TEST(HostsMulti, TheScriptOfTheExamples) {
  const ScratchFolder folder;
  const std::string programs = std::filesystem::path(LOCKSTEP_PROGRAM).parent_path();
  const Finished end =
      run_program({"env", "--chdir=" + folder.path().string(), "PATH=" + programs + ":/usr/bin:/bin",
                   "HOSTS=localhost,b:2", "SSH=" + fake_ssh(folder, "exec sh -c \"$2\""),
                   std::string(LOCKSTEP_SOURCE) + "/examples/ssh/train.sh", "sh", "-c", "echo $RANK of $WORLD_SIZE"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(lines_of(end.out), (std::set<std::string>{"[rank 0]: 0 of 3", "[rank 1]: 1 of 3", "[rank 2]: 2 of 3"}));
  EXPECT_TRUE(std::filesystem::exists(folder.path("logs")));
}

// The first machine by one of its own addresses, which ssh is not asked for.
TEST(HostsMulti, OverMachinesOfTheirOwn) {
  const Machines machines(3);
  const ScratchFolder folder;
  std::string cases;
  for (int machine = 1; machine < 3; ++machine) {
    std::ostringstream line;
    for (const std::string& word : machines.on(machine, {"sh", "-c"})) line << word << " ";
    cases += Machines::ipv4(machine) + "|" + Machines::ipv6(machine) + ") exec " + line.str() + "\"$2\";; ";
  }
  const std::string ssh = fake_ssh(folder, "case $1 in " + cases + "esac");
  const std::string hosts_4 = Machines::ipv4(0) + ":2," + Machines::ipv4(1) + "," + Machines::ipv4(2);
  const std::string hosts_6 = "[" + Machines::ipv6(0) + "]:2," + Machines::ipv6(1) + ",[" + Machines::ipv6(2) + "]:1";
  for (const std::string& hosts : {hosts_4, hosts_6}) {
    const Words command =
        on_hosts(hosts, ssh,
                 {"--nproc-per-node", "1", LOCKSTEP_STEPPING_WORKER, folder.path(hosts == hosts_4 ? "4" : "6"), "5"});
    Process job(machines.on(0, command));
    const Finished end = job.finish();
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_TRUE(contains(end.out, "rank 3 of 4 begins at step 0 on 6 addresses")) << end.out << end.err;
  }
}

// As Slurm announces the end by --signal. The signal goes to the first process alone.
TEST(HostsMulti, ASignalForWorkersReachesThoseOfAllNodes) {
  const ScratchFolder folder;
  const std::string ssh = fake_ssh(folder, "exec sh -c \"$2\"");
  Process job(on_hosts("localhost:2,b", ssh,
                       {"sh", "-c", "trap 'echo got USR1; exit 0' USR1; echo ready; while :; do sleep 0.01; done"}));
  ASSERT_TRUE(wait_for([&] { return lines_of(job.out_so_far()).size() == 3; })) << job.err_so_far();
  kill(job.pid(), SIGUSR1);
  const Finished end = job.finish();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (const char* line : {"[rank 0]: got USR1\n", "[rank 1]: got USR1\n", "[rank 2]: got USR1\n"}) {
    EXPECT_TRUE(contains(end.out, line)) << end.out << end.err;
  }
}

TEST(HostsFault, TheFirstFailureIsReportedOnce) {
  const ScratchFolder folder;
  const std::string ssh = fake_ssh(folder, "exec sh -c \"$2\"");
  const Finished end =
      run_program(on_hosts("localhost,b,c", ssh, {"sh", "-c", "[ $RANK = 2 ] && exit 9; exec sleep 600"}));
  EXPECT_EQ(end.exit_code, 9) << end.err;
  const std::size_t first = end.err.find("rank 2 failed first: exit code 9");
  EXPECT_NE(first, std::string::npos) << end.err;
  EXPECT_EQ(end.err.find("failed first", first + 30), std::string::npos) << end.err;
}

TEST(HostsFault, AHostThatCannotBeReachedEndsTheJob) {
  const ScratchFolder folder;
  const std::string ssh = fake_ssh(folder, "[ $1 = c ] && { echo no route to c >&2; exit 255; }; exec sh -c \"$2\"");
  Process job(on_hosts("localhost,b,c", ssh, {"sleep", "600"}));
  const Finished end = job.finish();
  EXPECT_EQ(end.exit_code, 255) << end.err;
  EXPECT_TRUE(contains(end.err, "no route to c")) << end.err;
  EXPECT_TRUE(contains(end.err, "the launcher on host c ended with exit code 255")) << end.err;
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST(HostsFault, ACommandThatFailsWithoutAWordIsNamed) {
  const ScratchFolder folder;
  for (const char* nodes : {"2", "1:2"}) {
    const Finished end = run_program(on_hosts("b,c", fake_ssh(folder, "exit 3"), {"--nnodes", nodes, "true"}));
    EXPECT_EQ(end.exit_code, 3) << end.err;
    EXPECT_TRUE(contains(end.err, " ended with exit code 3\n")) << end.err;
  }
  // Another host's word does not say why host b failed.
  const std::string ssh =
      fake_ssh(folder, "[ $1 = b ] || echo welcome >&2; sleep 0.2; [ $1 = b ] || sleep 0.3; exit 3");
  const Finished end = run_program(on_hosts("b,c", ssh, {"true"}));
  EXPECT_TRUE(contains(end.err, "the launcher on host b ended with exit code 3\n")) << end.err;
}

TEST(HostsFault, AJobThatCanDoWithoutAHostMayEndWell) {
  const ScratchFolder folder;
  const std::string ssh = fake_ssh(folder, "exit 255");
  const Finished end =
      run_program(on_hosts("localhost,b", ssh, {"--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0", "true"}));
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (const char* command : {"exit 255", "sleep 0.3; exit 255"}) {  // before the job fails, and after it
    const Finished failed =
        run_program(on_hosts("localhost,b", fake_ssh(folder, command),
                             {"--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0", "sh", "-c", "exit 3"}));
    EXPECT_EQ(failed.exit_code, 3) << failed.err;
  }
}

TEST(HostsMulti, TorchrunsVariablesHoldForAllHosts) {
  const ScratchFolder folder;
  const std::string ssh = fake_ssh(folder, "exec env -u PET_MAX_RESTARTS sh -c \"$2\"");
  const Finished end = run_program(Words{"env", "PET_MAX_RESTARTS=2"} +
                                   on_hosts("localhost,b", ssh, shell("echo $TORCHELASTIC_MAX_RESTARTS")));
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(lines_of(end.out), (std::set<std::string>{"[rank 0]: 2", "[rank 1]: 2"}));
}

void expect_end_by(int signal_number) {
  const ScratchFolder folder;
  const std::string ssh = fake_ssh(folder, "exec sh -c \"$2\"");
  Process job(on_hosts("localhost,b", ssh, {"sh", "-c", "echo ready; exec sleep 600"}));
  ASSERT_TRUE(wait_for([&] {
    const std::string out = job.out_so_far();
    return contains(out, "[rank 0]: ready") && contains(out, "[rank 1]: ready");
  })) << job.err_so_far();
  kill(job.pid(), signal_number);
  EXPECT_EQ(job.finish().exit_code, 128 + signal_number);
  EXPECT_TRUE(job.wait_until_no_descendant());
}

TEST(HostsFault, ASignalEndsAllLaunchers) {
  expect_end_by(SIGTERM);
}

TEST(HostsFault, TheDeathOfTheFirstLauncherEndsAll) {
  expect_end_by(SIGKILL);
}

TEST(HostsFault, OptionsThatContradict) {
  for (const Words& options : {Words{"--node-rank", "1"}, Words{"--rdzv-endpoint", "a"}, Words{"--nnodes", "3"}}) {
    const Finished end = run_program(on_hosts("localhost,b", "ssh", options + Words{"true"}));
    EXPECT_EQ(end.exit_code, 2) << end.err;
    EXPECT_TRUE(contains(end.err, "--hosts")) << end.err;
  }
  EXPECT_EQ(run_program(on_hosts("a,,b", "ssh", {"true"})).exit_code, 2);
  const Finished no_ssh = run_program(on_hosts("localhost,b", "/no/such/ssh", {"true"}));
  EXPECT_EQ(no_ssh.exit_code, 1);
  EXPECT_TRUE(contains(no_ssh.err, "/no/such/ssh")) << no_ssh.err;
}

}  // namespace
}  // namespace lockstep::test
