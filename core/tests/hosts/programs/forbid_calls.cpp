// forbid_calls PROGRAM [ARGUMENT...]: runs a program that may not use what Docker's default seccomp profile forbids
// (some of it only without capabilities): these system calls fail with EPERM.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <vector>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: forbid_calls PROGRAM [ARGUMENT...]\n", stderr);
    return 2;
  }
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : {SYS_ptrace,
                              SYS_process_vm_readv,
                              SYS_process_vm_writev,
                              SYS_pidfd_getfd,
                              SYS_kcmp,
                              SYS_mount,
                              SYS_umount2,
                              SYS_unshare,
                              SYS_setns,
                              SYS_keyctl,
                              SYS_add_key,
                              SYS_request_key,
                              SYS_bpf,
                              SYS_perf_event_open,
                              SYS_userfaultfd,
                              SYS_io_uring_setup,
                              SYS_mbind,
                              SYS_set_mempolicy,
                              SYS_move_pages,
                              SYS_migrate_pages,
                              SYS_open_by_handle_at,
                              SYS_name_to_handle_at,
                              SYS_syslog,
                              SYS_acct,
                              SYS_quotactl,
                              SYS_swapon,
                              SYS_reboot,
                              SYS_personality}) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::perror("forbid_calls: seccomp");
    return 1;
  }
  execvp(argv[1], argv + 1);
  std::perror(argv[1]);
  return 127;
}
