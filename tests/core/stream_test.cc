#include "terrace/core/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "terrace/core/float_env.h"

namespace terrace {
namespace {

template <class F>
std::string WhatOf(F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(EventTest, ADeferredOneIsDoneByTheFirstWait) {
  int ran = 0;
  const Event event = Event::Deferred([&] { ++ran; });
  const Event same = event;
  EXPECT_FALSE(event.Done());
  EXPECT_EQ(ran, 0);
  same.Wait();
  event.Wait();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(event.Done());
  // Whoever waits second waits for the first.
  std::promise<void> begun, go;
  const Event slow = Event::Deferred([&] {
    begun.set_value();
    go.get_future().wait();
    ++ran;
  });
  auto first = std::async(std::launch::async, [&] { slow.Wait(); });
  begun.get_future().wait();
  auto second = std::async(std::launch::async, [&] {
    slow.Wait();
    return ran;
  });
  go.set_value();
  first.get();
  EXPECT_EQ(second.get(), 2);
  const Event fails = Event::Deferred([] { throw std::runtime_error("no"); });
  for (int wait = 0; wait < 2; ++wait)
    EXPECT_EQ(WhatOf([&] { fails.Wait(); }), "no");
}

TEST(QueueTest, RunsInOrder) {
  std::vector<int> order;
  Queue queue("test");
  std::vector<Event> events;
  for (int i = 0; i < 100; ++i)
    events.push_back(queue.Enqueue([&order, i] { order.push_back(i); }));
  queue.Synchronize();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(order[static_cast<size_t>(i)], i);
    EXPECT_TRUE(events[static_cast<size_t>(i)].Done());
  }
}

TEST(QueueTest, AnEventIsDoneWhenItsTaskIs) {
  std::promise<void> gate;
  Queue queue("test");
  const Event event = queue.Enqueue([&] { gate.get_future().wait(); });
  EXPECT_FALSE(event.Done());
  gate.set_value();
  event.Wait();
  EXPECT_TRUE(event.Done());
  EXPECT_TRUE(Event().Done());
  Event().Wait();
}

TEST(QueueTest, StopsAfterAFailedTaskAndLaterEventsCarryItsError) {
  std::atomic<int> ran = 0;
  Queue queue("test");
  const Event good = queue.Enqueue([&] { ++ran; });
  const Event bad =
      queue.Enqueue([] { throw std::runtime_error("the first failure"); });
  const Event later = queue.Enqueue([&] { ++ran; });
  const Event other =
      queue.Enqueue([] { throw std::runtime_error("the second failure"); });
  for (int i = 0; i < 2; ++i) {  // at every Wait
    EXPECT_EQ(WhatOf([&] { good.Wait(); }), "");
    EXPECT_EQ(WhatOf([&] { bad.Wait(); }), "the first failure");
    EXPECT_EQ(WhatOf([&] { later.Wait(); }), "the first failure");
    EXPECT_EQ(WhatOf([&] { other.Wait(); }), "the first failure");
    EXPECT_EQ(WhatOf([&] { queue.Synchronize(); }), "the first failure");
  }
  EXPECT_TRUE(later.Done());
  EXPECT_EQ(ran, 1);
}

TEST(QueueTest, LetsGoOfWhatATaskHoldsBeforeItsEventIsDone) {
  auto held = std::make_shared<int>(7);
  const std::weak_ptr<int> watch = held;
  Queue queue("test");
  const Event event = queue.Enqueue([held = std::move(held)] { (void)*held; });
  event.Wait();
  EXPECT_TRUE(watch.expired());
}

TEST(QueueTest, ItsDestructorRunsWhatWasEnqueued) {
  std::atomic<int> ran = 0;
  Event last;
  {
    Queue queue("a name that is longer than the kernel takes");
    for (int i = 0; i < 50; ++i) last = queue.Enqueue([&] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
  EXPECT_TRUE(last.Done());  // an event outlives its queue
}

TEST(QueueTest, ItsWorkerFlushesSubnormals) {
  bool flushes = false;
  Queue queue("test");
  queue.Enqueue([&] { flushes = FlushesToZero(); }).Wait();
  EXPECT_TRUE(flushes);
}

}  // namespace
}  // namespace terrace
