// What the ranks are counted for (decision I9). Four questions that are easily
// all answered with "the world size" get their own numbers:
//   data       ranks that each take their share of a global batch
//   shard      ranks that a unit's states are cut over
//   replicate  groups that hold the same shards
// The loader uses data, partition uses shard; normalisation uses weights only.
// Today data = shard = world and replicate = 1.
#pragma once

namespace terrace::zero {

struct Mesh {
  int data = 1;
  int shard = 1;
  int replicate = 1;

  static Mesh OfWorld(int world) { return {world, world, 1}; }
};

}  // namespace terrace::zero
