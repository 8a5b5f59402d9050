// Runs the kernels' headers on real threads and compares with the serial executor; meant to be built
// with a sanitizer. test_threads.py builds and drives it.
//
//   executors --list                             one line for each test: its name and its sites
//   executors --cases N --seed S [--workers W] [--test NAME] [--skip SITE] [--seconds T]
//
// Without --workers each case runs on 2 to 5 threads; W = 32, 64, ... makes warps of them.
// Exit status: 0 all equal; 1 a result differed; 2 wrong arguments. A case longer than T seconds ends the run by
// SIGALRM: with a site skipped, workers may wait for each other for ever.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "executor_tests.h"
#include "harness.h"
#include "sample_tests.h"
#include "tree_tests.h"

namespace {

std::vector<Test> all_tests() {
    std::vector<Test> tests;
    for (const auto& some : {executor_tests(), tree_tests(), sample_tests()})
        tests.insert(tests.end(), some.begin(), some.end());
    return tests;
}

struct Arguments {
    bool list = false;
    int cases = 100;
    std::uint64_t seed = 0;
    std::string test;
    int workers = 0;
    int skip = ddtree::kNoSite;
    unsigned seconds = 300;
};

bool parse(int argc, char** argv, Arguments& arguments) {
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        if (flag == "--list") {
            arguments.list = true;
            continue;
        }
        if (i + 1 == argc) return false;
        const char* value = argv[++i];
        if (flag == "--cases")
            arguments.cases = std::atoi(value);
        else if (flag == "--seed")
            arguments.seed = std::strtoull(value, nullptr, 10);
        else if (flag == "--test")
            arguments.test = value;
        else if (flag == "--workers")
            arguments.workers = std::atoi(value);
        else if (flag == "--skip")
            arguments.skip = std::atoi(value);
        else if (flag == "--seconds")
            arguments.seconds = static_cast<unsigned>(std::atoi(value));
        else
            return false;
    }
    return arguments.workers % ddtree::kTeam == 0 && arguments.workers <= Harness::kMostWorkers;
}

// Whether all cases were equal; stops at the first that was not.
bool run(const Test& test, const Arguments& arguments) {
    for (int i = 0; i < arguments.cases; ++i) {
        alarm(arguments.seconds);
        Harness harness(arguments.seed + static_cast<std::uint64_t>(i), arguments.workers, arguments.skip);
        test.run(harness);
        if (!harness.failed()) continue;
        std::printf("%s: seed %llu\n", test.name,
                    static_cast<unsigned long long>(arguments.seed + static_cast<std::uint64_t>(i)));
        return false;
    }
    std::printf("%s: %d cases equal\n", test.name, arguments.cases);
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments;
    if (!parse(argc, argv, arguments)) {
        std::fputs(
            "usage: executors --list [--workers W]\n"
            "       executors --cases N --seed S [--workers W] [--test NAME] [--skip SITE] [--seconds T]\n",
            stderr);
        return 2;
    }
    bool equal = true;
    for (const Test& test : all_tests()) {
        if (!arguments.test.empty() && arguments.test != test.name) continue;
        if (arguments.list) {
            std::printf("%s", test.name);
            for (int site : test.sites) std::printf(" %d", site);
            if (arguments.workers > 0)
                for (int site : test.warp_sites) std::printf(" %d", site);
            std::printf("\n");
        } else {
            equal = run(test, arguments) && equal;
        }
    }
    return equal ? 0 : 1;
}
