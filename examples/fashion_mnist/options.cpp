#include "options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small CNN on Fashion-MNIST (or MNIST) with all processes of the world");
  app.add_option("--data", options.data, "folder with the idx files, compressed (.gz) or not")->capture_default_str();
  app.add_option("--epochs", options.epochs)->check(CLI::Range(0, 1000000))->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "samples per step on each process")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate")->capture_default_str();
  app.add_option("--momentum", options.momentum)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  CLI::Option* folder = app.add_option("--checkpoint-dir", options.checkpoint_dir, "save here after each epoch");
  app.add_flag("--resume", options.resume, "continue from the newest checkpoint there, if any")->needs(folder);
  app.add_option("--log", options.log, "folder for the log of the run, which `lockstep report` shows");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}
