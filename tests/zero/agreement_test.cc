// Work that fails on some ranks ends on all, with one code; the group goes on.
#include "terrace/zero/agreement.h"

#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <string>
#include <system_error>

#include "terrace/core/error.h"
#include "terrace/tests/support/ranks.h"

namespace terrace::zero {
namespace {

// Rank 1 of 3 does `work`, the others nothing. Each must get an Error of `code`
// afterwards, or rank 1 what it threw itself, and the group must still work.
void ExpectAll(ErrorCode code, const std::string& part,
               const std::function<void()>& work) {
  terrace::testing::RunRanks(3, [&](int rank, Communicator& comm) {
    std::string message;
    try {
      RunAgreed(comm, "test", [&] {
        if (rank == 1) work();
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      message = error.message();
      const auto* relayed = dynamic_cast<const RelayedError*>(&error);
      EXPECT_EQ(relayed != nullptr, rank != 1);
      if (relayed != nullptr) {
        EXPECT_EQ(relayed->rank(), 1);
        EXPECT_EQ(message,
                  "[test] failed on rank 1: " + relayed->own_message());
      }
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(rank, 1);
      message = part;
    } catch (int) {
      EXPECT_EQ(rank, 1);
      message = part;
    }
    EXPECT_NE(message.find(part), std::string::npos) << message;
    const bool named = message.find("failed on rank 1") != std::string::npos;
    EXPECT_EQ(named, rank != 1) << message;
    int done = 0;
    RunAgreed(comm, "test", [&] { ++done; });
    EXPECT_EQ(done, 1);
  });
}

TEST(AgreementTest, AnErrorKeepsItsCode) {
  ExpectAll(ErrorCode::kData, "the header is short",
            [] { throw Error(ErrorCode::kData, "the header is short"); });
}

TEST(AgreementTest, WhatTheSystemRefusesIsIo) {
  ExpectAll(ErrorCode::kIo, "disk", [] {
    throw std::system_error(std::make_error_code(std::errc::no_space_on_device),
                            "disk");
  });
}

TEST(AgreementTest, NoMemoryIsOutOfMemory) {
  ExpectAll(ErrorCode::kOutOfMemory, "no memory left",
            [] { throw std::bad_alloc(); });
}

TEST(AgreementTest, AnythingElseIsInternal) {
  ExpectAll(ErrorCode::kInternal, "unknown exception", [] { throw 7; });
}

}  // namespace
}  // namespace terrace::zero
