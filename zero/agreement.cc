#include "terrace/zero/agreement.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

// Fixed length, as an exchange wants it.
struct Outcome {
  uint8_t failed;
  uint8_t code;
  char message[2046];  // ends with a zero
};

Outcome Failed(ErrorCode code, std::string_view message) {
  Outcome outcome{};
  outcome.failed = 1;
  outcome.code = static_cast<uint8_t>(code);
  message.copy(outcome.message, sizeof outcome.message - 1);
  return outcome;
}

}  // namespace

RelayedError::RelayedError(ErrorCode code, std::string_view where, int rank,
                           std::string own_message)
    : Error(code,
            StrCat("[", where, "] failed on rank ", rank, ": ", own_message)),
      rank_(rank),
      own_message_(std::move(own_message)) {}

void RunAgreed(Communicator& comm, std::string_view where,
               FunctionRef<void()> work) {
  Outcome mine{};
  std::exception_ptr own;
  try {
    work();
  } catch (const Error& error) {
    own = std::current_exception();
    mine = Failed(error.code(), error.message());
  } catch (const std::bad_alloc&) {
    own = std::current_exception();
    mine = Failed(ErrorCode::kOutOfMemory,
                  "[memory] the machine has no memory left");
  } catch (const std::system_error& error) {  // of std::filesystem, as a rule
    mine = Failed(ErrorCode::kIo, error.what());
    own = std::make_exception_ptr(Error(ErrorCode::kIo, mine.message));
  } catch (const std::exception& error) {
    own = std::current_exception();
    mine = Failed(ErrorCode::kInternal, StrCat("[internal] ", error.what()));
  } catch (...) {
    own = std::current_exception();
    mine = Failed(ErrorCode::kInternal, "[internal] unknown exception");
  }
  std::vector<Outcome> all(static_cast<size_t>(comm.size()));
  comm.Exchange({std::string(where) + " outcome", -1},
                std::as_bytes(std::span(&mine, 1)),
                std::as_writable_bytes(std::span(all)))
      .Wait();
  if (own != nullptr) std::rethrow_exception(own);
  const auto first = std::ranges::find_if(
      all, [](const Outcome& outcome) { return outcome.failed != 0; });
  if (first == all.end()) return;
  throw RelayedError(static_cast<ErrorCode>(first->code), where,
                     static_cast<int>(first - all.begin()), first->message);
}

void EnterTogether(Communicator& comm, std::string what) {
  comm.Exchange({std::move(what), -1}, {}, {}).Wait();
}

}  // namespace terrace::zero
