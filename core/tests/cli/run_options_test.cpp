#include "cli/run_options.h"

#include <gtest/gtest.h>

#include "launch/nodes/hosts_job.h"
#include "options/command.h"

namespace lockstep::cli {
namespace {

constexpr Machine kCpuMachine{.cores = 6, .gpus = 0};
constexpr Machine kGpuMachine{.cores = 6, .gpus = 2};

// `lockstep run`, with its options in `values`.
options::Command run_command(RunOptions& values) {
  options::Command command{.name = "run", .help = ""};
  command.runs_program = true;
  declare_run_options(*command.table, values);
  return command;
}

Status read(const options::Command& command, const std::vector<std::string>& words) {
  LOCKSTEP_ASSIGN_OR_RETURN(const options::CommandLine line, options::parse(command, words));
  return command.table->read({.environment = Environment::of_process(), .options = line.options});
}

Result<launch::JobOptions> parse(const std::string& line, const char* python = nullptr) {
  RunOptions values;
  LOCKSTEP_RETURN_IF_ERROR(read(run_command(values), launch::split_words(line).value()));
  return to_job_options(values, kCpuMachine, python);
}

TEST(RunOptions, NprocValues) {
  EXPECT_EQ(parse_nproc("3", kCpuMachine).value(), 3);
  EXPECT_EQ(parse_nproc("cpu", kGpuMachine).value(), 6);
  EXPECT_EQ(parse_nproc("gpu", kGpuMachine).value(), 2);
  EXPECT_EQ(parse_nproc("auto", kGpuMachine).value(), 2);
  EXPECT_EQ(parse_nproc("auto", kCpuMachine).value(), 6);
  EXPECT_EQ(parse_nproc("gpu", kCpuMachine).status().code(), ErrorCode::kUnavailable);
  for (const char* wrong : {"0", "-2", "", "two", "2x", "65537", "2000000000"}) {
    EXPECT_EQ(parse_nproc(wrong, kCpuMachine).status().code(), ErrorCode::kInvalidArgument) << wrong;
  }
}

TEST(RunOptions, SecondsUntilStandby) {
  using std::chrono::milliseconds;
  EXPECT_EQ(parse("x").value().standby_after, milliseconds(3000));
  EXPECT_EQ(parse("--standby 0.25 x").value().standby_after, milliseconds(250));
  EXPECT_EQ(parse("--standby off x").value().standby_after, std::nullopt);
  for (const char* wrong : {"", "on", "-1", "1s", "nan", "inf", "1e9"}) {
    EXPECT_EQ(parse_standby(wrong).status().code(), ErrorCode::kInvalidArgument) << wrong;
  }
}

TEST(RunOptions, NumbersOfNodes) {
  EXPECT_EQ(parse_nnodes("1").value(), std::pair(1, 1));
  EXPECT_EQ(parse_nnodes("3").value(), std::pair(3, 3));
  EXPECT_EQ(parse_nnodes("1:4").value(), std::pair(1, 4));
  for (const char* wrong : {"4:1", "0", "0:2", "many", "", ":", "2:", "-1"}) {
    EXPECT_EQ(parse_nnodes(wrong).status().code(), ErrorCode::kInvalidArgument) << wrong;
  }
}

TEST(RunOptions, WhereNodesMeet) {
  const auto nodes = [](const std::string& line) { return parse(line + " x").value().nodes; };
  const auto c10d = nodes("--nnodes 2:3 --rdzv-endpoint [fd77::1]:77");
  EXPECT_EQ(c10d.meeting.endpoint.text(), "[fd77::1]:77");
  EXPECT_EQ(c10d.meeting.store_place, launch::StorePlace::kByAddress);
  EXPECT_EQ(c10d.min_nodes, 2);
  EXPECT_EQ(c10d.max_nodes, 3);
  EXPECT_EQ(c10d.node_rank, -1);
  EXPECT_EQ(nodes("--nnodes 2 --rdzv-endpoint a").meeting.endpoint.text(), "a:29400");
  const auto first = nodes("--nnodes 2 --master-addr a --node-rank 0");
  EXPECT_EQ(first.meeting.endpoint.text(), "a:29500");
  EXPECT_EQ(first.meeting.store_place, launch::StorePlace::kHere);
  const auto second = nodes("--nnodes 2 --master-addr a --master-port 5 --node-rank 1 --rdzv-backend static");
  EXPECT_EQ(second.meeting.endpoint.text(), "a:5");
  EXPECT_EQ(second.meeting.store_place, launch::StorePlace::kElsewhere);
  EXPECT_EQ(second.node_rank, 1);
  const auto conf = nodes(
      "--nnodes 2 --rdzv-endpoint a "
      "--rdzv-conf join_timeout=1.5,last_call_timeout=0,silence=4,is_host=true,same_program=0");
  EXPECT_EQ(conf.join_timeout, std::chrono::milliseconds(1500));
  const auto last = [&](const std::string& text) { return nodes("--rdzv-conf " + text).join_timeout.count(); };
  EXPECT_EQ(last("timeout=1,join_timeout=2"), 2000);
  EXPECT_EQ(last("join_timeout=2,timeout=1"), 1000);
  EXPECT_EQ(conf.last_call, std::chrono::milliseconds(0));
  EXPECT_EQ(conf.meeting.silence, std::chrono::seconds(4));
  EXPECT_EQ(conf.meeting.store_place, launch::StorePlace::kHere);
  EXPECT_FALSE(conf.same_command);
}

TEST(RunOptions, TorchrunsVariablesAreDefaults) {
  setenv("PET_NPROC_PER_NODE", "3", 1);
  setenv("PET_MAX_RESTARTS", "2", 1);
  setenv("PET_MODULE", "1", 1);
  const auto job = parse("--max-restarts 5 x");
  setenv("PET_MAX_RESTARTS", "-1", 1);
  const auto wrong = parse("x");
  const auto overridden = parse("--max-restarts 5 x");
  unsetenv("PET_MODULE");
  unsetenv("PET_NPROC_PER_NODE");
  unsetenv("PET_MAX_RESTARTS");
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job.value().workers, 3);
  EXPECT_EQ(job.value().max_restarts, 5);
  EXPECT_EQ(job.value().command.back(), "x");
  EXPECT_EQ(job.value().command.size(), 4U) << "not run as a module";
  EXPECT_TRUE(overridden.ok()) << overridden.status().message();
  EXPECT_EQ(wrong.status().message(),
            "the variable PET_MAX_RESTARTS: expected a whole number from 0 to 2147483647, found '-1'");
}

TEST(RunOptions, BothSpellingsOfEveryOption) {
  for (const char* line : {"--nproc-per-node 2 --max-restarts 3 --master-port 77 --log-dir d --rdzv-id j ./train",
                           "--nproc_per_node=2 --max_restarts=3 --master_port=77 --log_dir=d --rdzv_id=j ./train"}) {
    const auto job = parse(line);
    ASSERT_TRUE(job.ok()) << job.status().message();
    EXPECT_EQ(job.value().workers, 2);
    EXPECT_EQ(job.value().max_restarts, 3);
    EXPECT_EQ(job.value().master_port, 77);
    EXPECT_EQ(job.value().log_dir, "d");
    EXPECT_EQ(job.value().run_id, "j");
  }
}

TEST(RunOptions, WhatFollowsTheProgramIsItsOwn) {
  const auto job = parse("--nproc-per-node 2 ./train --epochs 3 --nproc-per-node 9 -h");
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job.value().workers, 2);
  EXPECT_EQ(job.value().command, (std::vector<std::string>{"./train", "--epochs", "3", "--nproc-per-node", "9", "-h"}));
}

TEST(RunOptions, CommandLines) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(parse("train.py -x").value().command, (Words{"python3", "-u", "train.py", "-x"}));
  EXPECT_EQ(parse("train.py", "/opt/python").value().command, (Words{"/opt/python", "-u", "train.py"}));
  EXPECT_EQ(parse("-m pkg.train -x").value().command, (Words{"python3", "-u", "-m", "pkg.train", "-x"}));
  EXPECT_EQ(parse("--no-python train.py").value().command, (Words{"train.py"}));
  for (const char* line : {"-mr 3 pkg.train", "-mr3 pkg.train"}) {
    EXPECT_EQ(parse(line).value().command, (Words{"python3", "-u", "-m", "pkg.train"})) << line;
    EXPECT_TRUE(parse(line).value().redirects.any()) << line;
  }
}

// With JOB empty, --rdzv-id=$JOB ./train echo must not run `echo`.
TEST(RunOptions, AnEmptyValueTakesNoWord) {
  RunOptions values;
  std::vector<std::string> names;
  {
    const options::Command command = run_command(values);
    for (const options::Key& key : command.table->keys()) {
      if (!key.is_option()) continue;
      names.push_back("--" + key.name() + "=");
      names.push_back(command.table->option_of(key) + "=");
    }
  }
  ASSERT_GT(names.size(), 40U);
  int accepted = 0;
  for (const std::string& name : names) {
    RunOptions taken;
    if (!read(run_command(taken), {name, "./train", "echo", "hi"}).ok()) continue;  // a number, or one of some words
    EXPECT_EQ(taken.program, (std::vector<std::string>{"./train", "echo", "hi"})) << name;
    ++accepted;
  }
  EXPECT_GT(accepted, 20);
  EXPECT_EQ(parse("--rdzv-id= ./train").value().run_id, "");
  EXPECT_EQ(parse("--role= ./train").value().role, "default");
}

TEST(RunOptions, AMissingValueIsNotTheNextOption) {
  EXPECT_NE(parse("--rdzv-id --tee 3 ./train").status().message().find("'--tee' is the next option"),
            std::string::npos);
  EXPECT_NE(parse("--rdzv-id -r 3 ./train").status().message().find("'-r' is the next option"), std::string::npos);
  EXPECT_NE(parse("--rdzv-id -- ./train").status().message().find("its value is missing"), std::string::npos);
  EXPECT_EQ(parse("--rdzv-id=--tee ./train").value().run_id, "--tee");
}

TEST(RunOptions, TheLastOfAnOptionThatComesTwiceCounts) {
  EXPECT_EQ(parse("--nproc-per-node 3 --nproc_per_node=2 x").value().workers, 2);
  EXPECT_EQ(parse("-r 1 --redirects 0 x").value().redirects.any(), false);
}

// As torchrun's parser allows them.
TEST(RunOptions, BeginningsOfOptions) {
  EXPECT_EQ(parse("--nnode=1 --nproc_per=2 --max 4 x").value().max_restarts, 4);
  EXPECT_EQ(parse("--nproc-per 2 x").value().workers, 2);
  EXPECT_FALSE(parse("--no-pi x").value().pin_cores);
  EXPECT_EQ(parse("--no-pyth x.py").value().command, (std::vector<std::string>{"x.py"}));
  EXPECT_NE(parse("--no x").status().message().find("--no may mean "), std::string::npos);
  EXPECT_NE(parse("--nprocs-per-node 2 x").status().message().find("the nearest known one is --nproc-per-node"),
            std::string::npos);
  EXPECT_EQ(parse("x --nproc 2").value().command, (std::vector<std::string>{"x", "--nproc", "2"}));
}

TEST(RunOptions, WhatIsNoNumberIsRefused) {
  for (const char* words : {"--grace nan x", "--grace=NaN x", "--monitor-interval nan x", "--grace -1 x",
                            "--max-restarts 0x50 x", "--node-rank=0x0 x", "--master-port 0b1 x", "--max-restarts= x",
                            "--max-restarts 1.5 x", "--max-restarts 2147483648 x", "--rdzv-backend= x"}) {
    EXPECT_EQ(parse(words).status().code(), ErrorCode::kInvalidArgument) << words;
  }
  EXPECT_EQ(parse("--max-restarts 0x50 x").status().message(),
            "--max-restarts: expected a whole number from 0 to 2147483647, found '0x50'");
  EXPECT_EQ(parse("--grace= x").status().message(),
            "--grace: expected a time such as 30s or 5min, from 0 to 100000000 seconds, found ''");
  EXPECT_EQ(parse("--rdzv-backend= x").status().message(),
            "--rdzv-backend: expected one of c10d, static or none, found ''");
}

// As Python's int() reads them, and not as C does.
TEST(RunOptions, LeadingZerosAreNoOctal) {
  EXPECT_EQ(parse("--max-restarts 010 x").value().max_restarts, 10);
  EXPECT_EQ(parse("--max-restarts=08 x").value().max_restarts, 8);
  EXPECT_EQ(parse("--master-port 0077 x").value().master_port, 77);
  EXPECT_EQ(parse("--nnodes 2 --master-addr a --node-rank 01 x").value().nodes.node_rank, 1);
  setenv("PET_MAX_RESTARTS", "010", 1);
  const auto job = parse("x");
  unsetenv("PET_MAX_RESTARTS");
  EXPECT_EQ(job.value().max_restarts, 10);
  std::vector<int> list;
  std::int64_t seed = 0;
  const options::Command command{.name = "x", .help = ""};
  command.key("procs", list, "").between(1, 100);
  command.key("seed", seed, "");
  ASSERT_TRUE(read(command, {"--procs", "010,08", "--seed", "09"}).ok());
  EXPECT_EQ(list, (std::vector<int>{10, 8}));
  EXPECT_EQ(seed, 9);
}

TEST(RunOptions, Endpoints) {
  const auto both = parse("--rdzv-endpoint node7:1234 x");
  EXPECT_EQ(both.value().master_addr, "node7");
  EXPECT_EQ(both.value().master_port, 1234);
  const auto v6 = parse("--rdzv-endpoint [::1]:99 x");
  EXPECT_EQ(v6.value().master_addr, "::1");
  EXPECT_EQ(v6.value().master_port, 99);
  EXPECT_EQ(parse("--standalone --rdzv-endpoint node7:1234 x").value().master_port, 0);
  EXPECT_EQ(parse("--rdzv-endpoint node7:x y").status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(parse("--rdzv-endpoint fd77::1 y").status().message().find("in brackets"), std::string::npos);
}

TEST(RunOptions, MistakesAreNamed) {
  const auto message = [](const char* line) { return parse(line).status().message(); };
  EXPECT_NE(message("").find("no program to run"), std::string::npos);
  EXPECT_NE(message("--bogus x").find("unknown option '--bogus'"), std::string::npos);
  EXPECT_NE(message("--node-rank 1 x").find("--node-rank 1"), std::string::npos);
  EXPECT_NE(message("--nnodes 2 x").find("a place to meet"), std::string::npos);
  EXPECT_NE(message("--nnodes 2 --node-rank 2 --rdzv-endpoint a x").find("from 0 to 1"), std::string::npos);
  EXPECT_NE(message("--nnodes 2 --master-addr a x").find("needs the --node-rank"), std::string::npos);
  EXPECT_NE(message("--nnodes 1:2 --master-addr a --node-rank 0 x").find("fixed number"), std::string::npos);
  EXPECT_NE(message("--nnodes 2 --standalone x").find("--standalone is for one node"), std::string::npos);
  EXPECT_NE(message("--rdzv-conf bogus=1 x").find("--rdzv-conf bogus"), std::string::npos);
  EXPECT_NE(message("--rdzv-conf join_timeout=0 x")
                .find("join_timeout: expected a time such as 30s or 5min, at least 0.001 seconds, found '0'"),
            std::string::npos);
  EXPECT_NE(message("--rdzv-conf join_timeout=soon x").find("join_timeout: expected a time"), std::string::npos);
  EXPECT_NE(message("--local-ranks-filter 0,x y").find("--local-ranks-filter: expected local ranks"),
            std::string::npos);
  EXPECT_NE(message("--tee 4 x").find("--tee: '4'"), std::string::npos);
  EXPECT_NE(message("--redirects 0:1,0:2 x").find("--redirects: '0:1,0:2'"), std::string::npos);
  EXPECT_NE(message("-m --no-python x").find("exclude"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::cli
