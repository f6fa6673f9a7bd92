// SPDX-License-Identifier: Apache-2.0
// The algorithm's constants, with what was measured when they were chosen: one H200, float32,
// forward, [B,T,D], the share of a streaming kernel of the same arrays in the same run, cold L2.
//
//   threads x leaf   16,8192,1024  8,2048,1024  1,65536,512  1,2^20,64  4,262144,32  8,65536,1536
//   256 x 8          0.91          0.85         0.81         0.73       0.76         0.93
//   128 x 16         0.90          0.79         0.81         0.71       0.73         0.93
//   128 x 8          0.89          0.78         0.74         0.61       0.67         0.89
//
// What surprised. The kernels are bound by the instructions of a warp more than by anything else:
// the first version ran 1,500 of them a warp and tile at 0.85 (16,8192,1024), 1,350 gave 0.90.
// Whole tiles therefore have a path of their own without a test in it. One atomic a warp for its
// ticket, instead of one a block, cost a fifth of a warp's time. Cells with many inputs are bound
// by the instruction cache once their loops are unrolled: SRU backward took 0.96 ms unrolled, 0.60
// rolled. Two arrays that a conditional chooses between (c ? p[v] : q[v]) both end up in local
// memory.
//
// Leaves in registers, a lane a channel, were tried too: 4-byte accesses of whole lines, no copy in
// shared memory, gates computed once. With 32 steps (backward 16) and 128 registers a thread two
// blocks fit: 0.85, 0.82, 0.81, 0.71, 0.74, 0.80 in the order of the table, backward 0.75 where
// this has 0.90. Only rows that start anywhere (8,2001,1001: 0.70 against 0.50) and bfloat16 of 32
// channels (0.65 against 0.51) gained. A tile's way from its loads to its stores takes 6 us there
// and 9 us here, but what counts is how many bytes are on that way: 128 KB of registers a
// multiprocessor against 192 KB of shared memory. Halving a tile (16 steps, 3 blocks) gave 0.70.
// Blocks that stay and take their next ticket while they write changed nothing, nor did a quarter
// fewer instructions. So the next thing to try is more bytes, not fewer instructions: registers and
// shared memory at once. Prefetching tiles further on into the L2 cache isn't it: 128 tiles ahead
// nothing changed where sequences are few (1,2^20,64: 0.75, as without), and where that reaches
// over tens of megabytes lines were gone before they were read (16,8192,1024: 0.64).
//
// Where a tile's time goes, by stamps of the clock in a lean kernel of the same algorithm, mean us:
//
//                     ticket  copies  data arrive  leaves  tree  finish  until the next one starts
//   1,2^20,64           0.7     0.5       2.3        0.4    5.0    0.9     0.4
//   1,65536,512         0.9     0.5       2.7        0.4    3.5    0.9     0.6
//
// A hop of the tree takes 2 to 2.5 us (a node of 8 tiles is out 3 us after its last leaf, one of 64
// after 5, one of 512 after 5.5 to 6), of which the tiles' different pace is 0.3 to 0.9. The same
// kernel that waits for nobody, and is wrong: 0.96, 0.95, 0.96 (1,2^20,64; 1,65536,512;
// 4,262144,32), and 0.91 at 8,2048,1024, where it is the clearing and the ends that cost. Its load
// takes 5 us where this one's takes 3: what is missing is not bytes on their way but tiles that
// finish. What helped, in order (the last line, as the benchmark has it, with backward):
//
//                                          1,2^20,64   4,262144,32  1,65536,512  8,2048,1024
//   as it was                                0.76         0.78         0.85         0.86
//   nodes that are missing asked for
//   all at once, not one after another       0.78         0.78         0.855        0.87
//   whole tiles in a kernel of their own
//   that tests nothing (run_rows, kWhole)    0.81         0.81         0.88         0.89
//   there no resets, every thread works out
//   its tile, warps copy their own rows      0.83         0.85         0.90         0.90
//   forward, backward before               0.77, 0.79   0.78, 0.82   0.86, 0.88   0.88, 0.86
//   and after                              0.825, 0.85  0.84, 0.85   0.90, 0.92   0.90, 0.90
//
// The lean kernel has 0.86, 0.87, 0.915, 0.90: what is left of the difference is instructions.
// Tried in it on top of that: nodes of 8 tiles multiplied anew by whoever needs them, from the maps
// of all 63 tiles before, so that a prefix is one hop or two away instead of up to four: 0.885,
// 0.875, 0.915, 0.90, but 0.90 instead of 0.92 at 16,8192,1024. Data in registers (128 of them, two
// blocks that stay) while shared memory takes the next tile, which is published before the last one
// waits: 0.825 with a buffer a block and 0.72 to 0.80 with one and a half (its 6 us a tile hide no
// fold, and every fold stops a block); with nodes multiplied anew 0.88 and 0.82, 0.89 at
// 1,65536,512: more tiles on their way, each later. Copies and stores of rows by the bulk engine,
// 128 bytes each: 0.73 to 0.86; stores of whole lines through shared memory 0.79; reads marked as
// first to be evicted 0.80 at 4,262144,32 instead of 0.855; stores that stay in the caches 0.70.
//
// Clusters (clusters.cuh) spare the first hop, and with blocks that stay, a block's start. What
// counts with them is when a ticket is taken: a tile that can't begin yet holds up all behind it.
// Forward, in a lean kernel; blocks that stay but for the second line:
//
//                                 1,2^20,64  4,262144,32  1,65536,512  8,2048,1024  16,8192,1024
//   no clusters, as above           0.83       0.85         0.905        0.905         0.92
//   eight blocks, gone after a tile 0.72       0.72         0.81         0.86          0.85
//   ticket before the leaves        0.75       0.83         0.94         0.92          0.95
//   once the cluster has its maps   0.70       0.83         0.94         0.93          0.955
//   once it knows its state         0.905      0.92         0.95         0.93          0.96
//   so, every block asks the tree   0.89       0.90         0.94         0.93          0.96
//   so, nodes of eight clusters
//   multiplied anew, 63 or 15 nodes 0.83, 0.85 0.87, 0.89   0.945        0.925         0.96
//   so, four blocks                 0.89       0.92         0.95         0.905         0.95
//   so, two or one, 63 nodes        0.77, 0.68 0.79         0.93, 0.88   0.91          0.94, 0.91
//   waits for nobody, is wrong      0.96       0.95         0.94         0.93          0.95
//
// Backward, three arrays in shared memory left room for two blocks a multiprocessor. Now states
// wait in registers, fetched into the L2 cache as soon as the block has its map, and three blocks
// run. The benchmark: without clusters and with them; backward with two blocks, and with states
// fetched late, too.
//
//                  float32 forward   float32 backward          complex64 forward, backward
//   1,2^20,64        0.83, 0.88      0.86, 0.91 (0.84, 0.87)
//   4,262144,32      0.84, 0.90      0.85, 0.92 (0.86, 0.89)   0.81, 0.85   0.78, 0.87
//   1,65536,512      0.90, 0.94      0.92, 0.92 (0.92, 0.91)   0.88, 0.93   0.85, 0.91
//   8,2048,1024      0.90, 0.90      0.89, 0.90 (0.89, 0.88)
//   16,8192,1024     0.92, 0.96      0.91, 0.92 (0.93, 0.91)   0.90, 0.94   0.89, 0.89
//   8,65536,1536     0.94, 0.96      0.92, 0.92 (0.93, 0.90)
//
// Forward the lean kernel is a little faster where sequences are long, by 0.3 us a tile; fewer
// instructions between a ticket and its copies made no difference.
//
// The 16-bit types' tiles of 64 channels have twice the maps: places for one round's maps and one
// set of bands (10 KB) leave room for three blocks forward. Backward, states in registers would
// spill (144 bytes: 0.82, 0.77), so that they are staged, and two blocks run. Of 32 channels a row
// is half a line, for which whole tiles had no kernel. [B,T,D], bfloat16, forward and backward:
//
//                              16,8192,1024   1,65536,512   4,262144,32
//   before                      0.87, 0.86     0.74, 0.79    0.54, 0.56
//   whole tiles of half lines                                0.75, 0.81
//   clusters                    0.94, 0.92     0.83, 0.85    0.82, 0.81
//   waits for nobody, is wrong  0.94           0.88
//
// (Of half lines backward with clusters was slower for fewer tiles, 28 us instead of 23 at
// 1,135168,32, and isn't built.)
//
// Backward, what was tried to get states sooner or with less, 16,8192,1024 and 1,2^20,64 (now 0.92,
// 0.91): fetched into the L2 cache a line a thread by the bulk engine, together with the other
// arrays 0.88, 0.86, after the maps 0.92, 0.91, and 256 bytes at once 0.90, 0.895; read into
// registers at once after the maps 0.89, 0.85; both 0.91, 0.88. So it isn't states that are late.
// Copies that ask the L2 cache for 256 bytes: 0.93, 0.915 (forward 0.96, 0.88 instead of 0.965,
// 0.89; bfloat16 0.93, 0.82), as good as nothing.
//
// What limits it, by the profiler: percent of the peak of DRAM and of the L2 cache, of the most
// warps and of the issue slots; cycles that a warp stands for an instruction, on memory, on shared
// memory and messages, at barriers, for the queue of memory instructions:
//
//                                 share  DRAM  L2  warps  issue   memory  shared  barrier  queue
//   1,2^20,64           forward   0.89    79   84    36     29     12.5     1.4     1.8     0.6
//                       backward  0.91    81   89    36     24     14.1     2.1     2.3     1.0
//   16,8192,1024        forward   0.96    87   91    36     30     12.2     1.3     1.8     0.5
//                       backward  0.92    83   90    36     24     12.5     3.7     2.4     1.5
//   its streaming kernel          1.00    90   93
//   1,65536,512 bf16    forward   0.83    65   75    35     43      6.9     1.2     1.1     0.3
//                       backward  0.85    69   79    24     33      6.0     1.3     0.9     0.3
//   8,2001,1001 (lines) forward   0.72    59   86    23     25      5.0     0.8     3.0     0.6
//                       backward  0.63    53   77    24     19      5.9     1.5     3.5     4.4
//
// Nothing is short of instructions. Long float32 arrays have the L2 cache as busy as the streaming
// kernel has it, but get less out of the memory behind it, which seems to be the tiles' shape:
// blocks that only copy tiles, forward and backward, TB/s at 16,8192,1024, have 3.72, 3.64 with
// rows of 128 bytes and 4.00, 4.02 with rows of 256 (3.70, 3.60 and 3.92, 3.96 at 1,2^20,64). Not
// tried: such tiles in the scan. They have half the steps, and so twice the nodes one after
// another, and twice the maps. Calls of 50 us lose by their ends too: no more than 2,048 tiles, 5.7
// for each block.
//
// A tile stays 8.6 us at 1,2^20,64: copies 0.6, data 2.2, leaves 0.4, the cluster's maps 1.2, the
// state before it 3.2, outputs 0.8, the ticket's rest 0.2. No more than 45 clusters run at once,
// 360 blocks of 396, and less may come to run: tickets shared out beforehand waited forever for a
// cluster that had no room. One block a multiprocessor with a ring of three tiles, of which one
// waits in registers as well, and warps that do nothing but ask the tree: 0.73, 0.81, 0.91, 0.85,
// 0.89 with tickets, 0.92, 0.91, 0.915, 0.865, 0.85 with tiles shared out beforehand, which nothing
// guarantees to end.
//
// Cells were another matter, bound by instructions: 110 to 310 an element where memory leaves time
// for 80 to 250 at full issue (a scheduler issues 0.5 to 0.6 a cycle). Shares at 16,4096,512,
// float32:
//
//                                                   gilr fwd, bwd   sru fwd, bwd   rg_lru fwd, bwd
//   a channel at a time, expf, tanhf, divisions       0.47, 0.64      0.72, 0.48      0.19, 0.43
//   four channels at a time (lanes.cuh), the
//   machine's functions, steps kept, prepared         0.79, 0.63      0.81, 0.51      0.71, 0.54
//   regular tiles staged without a test, gates
//   opened once                                       0.82, 0.68      0.88, 0.58      0.75, 0.57
//   no division of indices, checkpoints read early    0.82, 0.71      0.87, 0.63      0.74, 0.58
//
// The choice of an activation alone, made for every element, had filled the instruction cache and
// left nothing to run while an exponential waits. What made no difference or lost: blocks of 128
// threads (backward 0.60 for sru, forward at 1,65536,512 0.71 instead of 0.78), leaves of four
// steps where three arrays are staged (0.69 instead of 0.72 at 1,65536,512), loops written out
// once, twice or four times.
//
// Then a block's way from its ticket to its last store was what counted, more than instructions:
// backward five slots of 16 KB leave two blocks a multiprocessor, 16 warps, which issue 0.5 a
// cycle. A third of a warp's time passes in the loops over steps; the ticket takes a tenth of it,
// the arrays another, the tree a fourteenth, and the sums of two biases a twentieth. So the leaves
// start on what their first run reads while the rest arrives (before, after):
//
//   16,4096,512   forward float32   backward float32   forward bfloat16
//   sru               0.87, 0.88         0.67, 0.67         0.53, 0.57
//   qrnn_fo           0.74, 0.77         0.61, 0.63         0.51, 0.52
//   gilr              0.82, 0.82         0.70, 0.73         0.53, 0.54
//   rg_lru            0.75, 0.73         0.60, 0.62         0.34, 0.36
//
// (bfloat16 also by vector inputs that are read without a product for each address: 417
// instructions a warp and tile of sru's 2,900.) Backward of the scan lost by it in bfloat16, 0.74
// instead of 0.77. What else lost: the gradients of what only the output reads written early, as
// soon as states are known (sru backward 0.67 before the node is published, which then comes later:
// 0.27 instead of 0.33 in bfloat16 at 1,65536,512; 0.63 behind it), though it saves a tenth of the
// instructions; one warp working out for all where the tile begins in each array, which saves 30
// instructions an array and thread and makes the way to the first load longer (forward 0.86 instead
// of 0.87).
//
// Columns, backward: warps that each hold 25 KB of five arrays and the states are eight a
// multiprocessor and issue 0.37 a cycle. Leaves of 16 steps instead of 32 make them sixteen; gates
// are opened once, and early gradients, which stay in their slots, are a gain here. At 16,4096,512,
// float32: sru 0.55, now 0.63; qrnn_fo 0.45, 0.59; min_lstm 0.63, 0.68; rg_lru 0.50, 0.60. With
// four arrays (gilr 0.61 instead of 0.68) and in bfloat16 (sru 0.39 instead of 0.42) shorter leaves
// lose. Nor did blocks of three warps, eighteen a multiprocessor, help (sru 0.62), or arrays that
// arrive later (sru 0.63, qrnn_fo 0.57, gilr 0.66, min_lstm 0.70; forward bfloat16 0.69 instead of
// 0.72).
//
// Whole tiles of cells in the kernel that tests nothing, which the scan alone had had, and there
// biases summed too; a bias read in vectors, where a branch for each channel had waited for its own
// load before the next one's; both sides of an activation computed instead of a branch around one
// (rg_lru only: others' are the same within 0.01). 16,4096,512 and 1,65536,512, float32:
//
//                   before        whole         and no branch
//   sru forward     0.89, 0.78    0.91, 0.86    0.92, 0.87
//   sru backward    0.68, 0.68    0.79, 0.79    0.79, 0.80
//   min_gru         0.85, 0.82    0.90, 0.87    0.89, 0.87
//   its backward    0.76, 0.72    0.88, 0.86    0.87, 0.87
//   qrnn_fo         0.77, 0.70    0.87, 0.80    0.87, 0.80
//   its backward    0.63, 0.62    0.73, 0.74    0.73, 0.73
//   rg_lru          0.74, 0.73    0.81, 0.78    0.86, 0.85
//   its backward    0.64, 0.64    0.71, 0.72    0.78, 0.80
//
// Blocks of 128 threads with twice the steps, which have half the warps for what is done once a
// warp, lose in float32: sru backward 0.76, qrnn_fo 0.84 and 0.67, rg_lru 0.71 and 0.62.
//
// The 16-bit types have half the time for an element, and no slot wide enough to keep a step in:
// gates are computed twice, and the machine's exponentials and reciprocals, 8 cycles a warp and
// scheduler each, alone take three quarters of sru backward's time. sru forward ran 75 instructions
// an element, of which 35 in the loops, in blocks of 256 threads at 0.73 a cycle and scheduler; in
// blocks of 128 with twice the steps 57, but at 0.58: of 4.9 cycles an instruction a warp stands
// 1.1 in fixed latencies, 0.7 in reads of memory, 0.5 at barriers. bfloat16, 16,4096,512 and
// 1,65536,512, after the above (before it sru 0.57, 0.51 and backward 0.36, 0.34, min_gru 0.59,
// 0.53 and 0.52, 0.48, rg_lru 0.36, 0.35 and 0.41, 0.40):
//
//   threads x channels x steps    sru          min_gru      qrnn_fo      rg_lru       min_lstm
//   forward   256 x 8 x 4 or 8    0.69, 0.63   0.69, 0.60   0.59, 0.53   0.40, 0.39   0.51, 0.49
//             256 x 4 x 8         0.61, 0.57   0.51, 0.45   0.55, 0.49   0.39, 0.37
//             128 x 8 x 8 or 16   0.68, 0.60   0.61, 0.57   0.58, 0.50   0.44, 0.41 (8 steps)
//     gains, 128 x 8 x 8          0.73, 0.66   0.62, 0.51   0.50, 0.46
//     gains, 128 x 4 x 16         0.64, 0.58   0.50, 0.43   0.50, 0.41
//   backward  256 x 4 x 4 or 8    0.50, 0.46   0.61, 0.57   0.42, 0.39   0.51, 0.49   0.54, 0.53
//             128 x 8 x 4 or 8    0.51, 0.48   0.68, 0.60   0.44, 0.41   0.40, 0.40   0.60, 0.58
//             128 x 4 x 8                                                0.56, 0.52   0.60, 0.55
//     gates, 128 x 4 x 8 or 16    0.52, 0.50   0.57, 0.55   0.45, 0.33
//     gates, 128 x 4 x 4 or 8     0.52, 0.47   0.59, 0.55   0.47, 0.39
//
// "gains" and "gates": kept in registers. Of gates backward one cell gained, and little: it takes
// loops that are written out, 99 instructions an element instead of 152 at 0.44 a cycle instead of
// 0.57, with waits for instructions among the rest. What else helped: both halves of a register
// widened by one operation each (4 of 150 instructions), the bias' product with log2(e) taken once.
//
// One long channel, (1,2^26,1): tiles of 1024 steps with a node, a ticket and a look-back for each
// warp are 65,536, of which 3,168 poll at once; 0.56 forward, 0.59 backward. A block's eight tiles
// as the children of one node: 0.68, 0.70 (1,2^20,64 in [B,D,T]: 0.88, 0.86 instead of 0.75, 0.78;
// 16,8192,1024: 0.99, 0.97 instead of 0.94, 0.93). What is left is waiting: warps stand at the
// barrier behind the look-back for 5.5 of 14.7 cycles an instruction, and issue 0.38 a cycle and
// scheduler. From a tile to the 512 blocks behind it there are four publications one after another.
//
// Rows that start anywhere, (8,2001,1001) in [B,T,D], forward and backward: 0.50, 0.46 with 4-byte
// copies into shared memory, 0.42, 0.40 with 16-byte copies of the vectors that lie whole in a row
// (turned in shared memory until the warp that copied them straightens them). A lane a channel
// (lines.cuh): 0.57, 0.56 with shared memory as large as it gets, 0.71, 0.61 with a quarter of it
// left to the L1 cache. What is on its way to registers or by copies of 4 bytes lies there, and of
// such rows each line lies in two of the cache's: with 28 KB a multiprocessor had too little on its
// way (aligned rows, 8,2048,1024: 0.83; 8,2000,1000, whose lines lie in two as well: 0.63).
//
//   arrays in registers, blocks, share    forward          backward
//   none                                  3, 0.55 (28 KB)  -
//   gains                                 3, 0.66          2, 0.61
//   gains and what a step adds            2, 0.71          2, 0.59
//
// What is left seems to be the L2 cache, at 0.8 of its throughput: a line takes 5 sectors instead
// of 4, and the counters have 1.5 times as many again. Where vectors are possible (8,2000,1000) it
// is no better than rows.cuh: 0.82, 0.77 against 0.80, 0.77.
//
// Columns that start anywhere or end within a tile (kRagged), forward and backward:
//
//                                        8,2001,1001   8,2000,1000
//   before                               0.72, 0.63    0.80, 0.73
//   4-byte copies by constants, the last
//   leaf of a sequence run as full ones  0.75, 0.66    0.88, 0.78
//
// In the kernel of all others the same cost backward 0.03 at 8,2048,1024, so it is one of its own.
// Lost: 16-byte copies of whole vectors, straightened in shared memory, in slots that are a vector
// longer (0.67, 0.61; aligned 16,8192,1024 0.94, 0.89 instead of 0.99, 0.98). In rows.cuh, calls
// whose last tiles aren't whole by the kernel of whole tiles, with the general code beside it:
// 8,2000,1000 0.81, 0.78, as good as nothing.
//
// Gains of tiles to half a unit (LostGain and WideGain in device.cuh). With constant gates all
// tiles round alike: with gains rounded after each leaf and each merge errors were up to 14 times
// a serial loop's in float32 (0.99999, T = 262,144), 150 times in complex64 (|a| = 1, T = 131,072).
// The tree's merges, every 2048 steps and more, hardly show: in a model of the brackets on the
// host, nodes that carry a loss as well gain nothing up to 0.99996. Time after / before, forward
// and backward; complex64 has (4,262144,32) in the last line:
//
//                  float32 [B,T,D]  float32 [B,D,T]  complex64 [B,T,D]  complex64 [B,D,T]
//   16,8192,1024     1.00, 1.00       1.00, 1.00        1.01, 1.01         1.01, 1.01
//   1,65536,512      1.00, 1.01       1.00, 1.01        1.04, 1.01         1.02, 1.00
//   1,2^20,64        1.00, 1.00       0.99, 1.00        1.07, 1.01         1.01, 1.01
//
// (complex64 when the bands' gains were multiplied one after another, which cost float32 0.014
// forward at 1,2^20,64. In the tree of the maps, as now, it has not been measured.) One register
// spilled in clusters, where the ticket is asked for, cost 0.016 backward at 1,2^20,64. Complex
// losses in float32 take 24 operations a step where doubles take six. In fused cells losses would
// cost up to 0.03 (sru, [B,D,T]).
//
// One long channel again: nodes multiplied anew by whoever needs them, two publications instead of
// four, changed nothing (0.68, 0.69) and cost at 1,2^20,64 in [B,D,T] (0.79, 0.75 instead of 0.88,
// 0.87). CUB's device-wide scan of the same maps took 0.67 ms where this takes 0.28, and its sum of
// floats 3.0 TB/s where this has 2.9.
//
// Columns of whole tiles in a kernel that tests nothing but the direction (whole_columns.cuh), 800
// to 1,200 instructions a warp and tile; there, blocks whose tiles are the children of a node stay.
// In all columns, sequences of two or four tiles share a block, without a tree or its clearing.
// Forward, backward, before and after:
//
//                   float32                   bfloat16                  complex64
//   16,8192,1024    0.99, 0.98   0.99, 0.98   0.96, 0.77   0.99, 0.98   0.96, 0.87   0.96, 0.94
//   8,2048,1024     0.88, 0.87   0.965, 0.965
//   1,65536,512     0.90, 0.86   0.93, 0.915  0.80, 0.67   0.91, 0.87   0.90, 0.78   0.92, 0.91
//   1,2^20,64       0.89, 0.87   0.91, 0.90
//   4,262144,32     0.885, 0.87  0.91, 0.91   0.78, 0.685  0.85, 0.85   0.89, 0.78   0.92, 0.90
//   1,2^26,1        0.675, 0.70  0.785, 0.755
//   32,256,1024     0.90, 0.82   0.97, 0.93
//   8,2000,1000     0.85, 0.785  0.90, 0.83   (kRagged, two tiles share a block)
//   8,2001,1001     0.77, 0.655  0.82, 0.70
//
//   16,4096,512     float32                   bfloat16
//   sru             0.86, 0.64   0.92, 0.80   0.76, 0.44   0.89, 0.505
//   gilr            0.84, 0.67   0.96, 0.80   0.62, 0.54   0.74, 0.78
//   min_gru         0.89, 0.70   0.97, 0.88   0.64, 0.54   0.81, 0.78
//   qrnn_fo         0.70, 0.60   0.85, 0.78   0.62, 0.41   0.75, 0.54
//   min_lstm        0.82, 0.67   0.96, 0.89   0.51, 0.48   0.58, 0.71
//   rg_lru          0.81, 0.60   0.95, 0.82   0.44, 0.51   0.47, 0.72
//
// What limits the rest, by the profiler's counters: memory's and the L2 cache's throughput, percent
// of the peak; instructions a cycle and multiprocessor; warps that run, percent of 64; and of the
// cycles that a warp stands for each instruction, those behind a barrier (most of them while
// one warp looks back), for memory (arrays and, in that warp, nodes), for shared memory, and while
// another warp was chosen. (The profiler clears the caches but lets the clocks down.)
//
//                                 memory  L2  issued  warps  barrier  memory  shared  others
//   float32 fwd 8,2048,1024           78  87    1.42     34     1.05     5.6     2.4     0.95
//   float32 bwd 8,2048,1024           75  84    1.23     23     0.63     3.3     2.7     0.6
//   float32 fwd 1,65536,512           77  86    1.34     37     4.7      5.4     2.7     0.7
//   float32 bwd 1,65536,512           76  84    1.05     25     3.0      3.9     3.5     0.4
//   float32 fwd 1,2^26,1              63  70    1.08     37    10.2      5.3     2.5     0.6
//   bfloat16 bwd 16,8192,1024         82  88    2.0      36     1.2      4.4     1.25    1.0
//   bfloat16 bwd 1,65536,512          66  78    1.7      37     3.85     4.5     1.5     0.8
//   complex64 bwd 1,65536,512         74  83    1.15     25     3.8      3.9     1.95    0.5
//
// So where a sequence is one block's or less, it is memory: the L2 cache has 0.84 to 0.88 of what
// it can do. Elsewhere warps wait for one of theirs that looks back, with all the shared memory
// that there is: three blocks forward, two backward. What was tried against it. Blocks that leave
// after a tile: 0.73 instead of 0.785 forward at 1,2^26,1, at most 0.01 apart elsewhere. The next
// ticket before the look-back: 0.59, 0.51 there, no difference at 1,65536,512. What precedes the
// node asked for before the block has its maps, so that where it is known nobody waits: 0.895,
// 0.89 instead of 0.91, 0.90 at 1,2^20,64, the same at 1,65536,512. bfloat16 backward in four
// blocks of 64 registers instead of three: 0.956 instead of 0.977, 0.877 instead of 0.872 in the
// order of the table. Backward with the states in registers, read in whole lines as soon as a warp
// has its map and turned by shuffles, which leaves room for a third block: 0.62, 0.61 in float32,
// 0.47, 0.46 in complex64, 0.68, 0.64 in bfloat16. A leaf's states alone are 32 of the 80 registers
// that three blocks leave a thread, and 76 to 216 bytes were spilled.
//
// Cells once more. Counted in the machine code, sru forward in bfloat16 spends 25 instructions an
// element in its two loops, and as many around them: 43 at 64 elements a thread. It isn't these
// that count most but how many warps there are: 128 threads with four arrays in shared memory are
// 12 a multiprocessor, which issue 0.58 a cycle. What only outputs read (r and the skip of sru, o
// of qrnn; the skip backward) now comes straight from memory, two steps ahead, once states are
// known, fetched into the L2 cache when the leaf has its map: 20 warps. The gains, float32, take
// the places of the two inputs that the map comes from, of which the other one waits in registers.
// Options and absent inputs known to the compiler (CellCases): a branch for each vector of a step
// had kept the functions of one from hiding behind another's, and qrnn without an input gate had
// staged, and computed with, one. Each of a block's warps had begun, channel by channel, from the
// tile's state for 64 channels, and one warp published them, 32 after 32; a thread now has one
// channel there and two warps publish. Backward, gates are opened once and held in registers (sru:
// 6 special functions an element instead of 12), and maps in the order of time lie where states
// will. Before and after, 16,4096,512 and 1,65536,512:
//
//              float32 forward         and backward
//   qrnn_fo    0.88, 0.80  0.90, 0.84  0.73, 0.74  0.80, 0.81
//   qrnn_ifo   0.91, 0.85  0.90, 0.88  0.82, 0.83  0.84, 0.86
//   min_gru    0.88, 0.87  0.89, 0.87  0.88, 0.88  0.87, 0.90
//   min_lstm   0.88, 0.87  0.89, 0.87  0.86, 0.84  0.84, 0.84
//
//              bfloat16 forward        and backward
//   qrnn_fo    0.61, 0.53  0.76, 0.71  0.45, 0.41  0.65, 0.60
//   qrnn_ifo   0.59, 0.54  0.73, 0.67  0.48, 0.46  0.61, 0.57
//   min_gru    0.69, 0.61  0.76, 0.69  0.68, 0.60  0.80, 0.74
//   min_lstm   0.56, 0.52  0.58, 0.55  0.61, 0.56  0.62, 0.59
//
// (rg_lru, of which nothing changed but the count of warps that publish: bfloat16 0.45, 0.42 and
// 0.44, 0.42, backward 0.57, 0.52 and 0.56, 0.54.)
//
// sru, float32: forward 0.91, 0.87 with three blocks of 256 threads, 0.89, 0.87 with four, of 64
// registers a thread; backward 0.80, 0.82 with steps written out twice, 0.77, 0.78 without. In
// bfloat16 without gains kept and gates held: forward 0.78, 0.73 (gilr 0.67, 0.61), backward 0.61,
// 0.58. Vectors that wait in registers have to be words: of 16-bit elements each takes one.
//
// What limits them, 16,4096,512, by counters; stalls in cycles an instruction, of all warps. "xu":
// special functions an element.
//
//                        warps  issue  instructions   xu    stalls: memory  barrier  fixed  others
//   sru bf16 forward     18.5   0.58   43             4.0           2.7     0.7      1.1    2.5
//   sru bf16 backward    15.5   0.60   109            6.6           1.2     0.7      1.1    2.3
//   qrnn_fo bf16 forward 18.6   0.59   40             6.0           1.3     0.8      1.4    3.8
//   qrnn_fo bf16 backw.  15.4   0.63   95             9.6           0.5     0.9      1.2    2.5
//   gilr bf16 forward    18.7   0.63   31             4.0           1.4     0.9      1.3    2.9
//   sru f32 backward     15.2   0.48   135            4.1           1.6     1.8      1.2    2.2
//
// (Nothing is read twice: 0.279 GB of sru's 0.268, bfloat16 forward.) At 0.6 a cycle, memory leaves
// time for 45, 77, 36, 60, 27 and 152.
//
// Cells in [B,T,D] a third time: how many blocks a multiprocessor holds, again. Backward in float32
// five arrays of 16 KB had left two. Where states are recomputed (sru, qrnn_fo) they now take the
// place of an input, which a thread has in registers from there on, steps written out: 80 of them,
// three blocks. Where the output has them, inputs that the adjoint's map doesn't read come straight
// from memory, as what only outputs read did: of rg_lru and min_lstm one, which makes a third block
// (gilr has three anyway; with a fourth one, of 64 registers, it would spill), in the 16-bit types
// all, for which 16 bytes of five arrays then are better than 8 (rg_lru 0.665, 0.65 with 8).
// Forward, three inputs of 16 bits leave room for a step's gain and the upper half of what it adds,
// whose lower half stays in registers: nothing is computed twice. There rg_lru's 1 - a^2 comes from
// a, or from its series ([B,D,T], 1,65536,512: 0.46 before, now 0.53, backward 0.71, 0.75; by two
// terms, which were 2^-15 off, now there are four).
// Before and after, 16,4096,512 and 1,65536,512:
//
//              float32 backward        bfloat16 forward        and backward
//   sru        0.81, 0.81  0.84, 0.86
//   qrnn_fo    0.80, 0.80  0.85, 0.86
//   qrnn_ifo                           0.71, 0.66  0.79, 0.74
//   gilr                                                       0.78, 0.71  0.80, 0.78
//   hgrn                                                       0.66, 0.61  0.72, 0.70
//   min_gru                                                    0.79, 0.73  0.81, 0.78
//   min_lstm   0.85, 0.84  0.87, 0.90  0.58, 0.54  0.70, 0.60  0.62, 0.58  0.70, 0.70
//   rg_lru     0.78, 0.79  0.84, 0.86  0.44, 0.42  0.69, 0.59  0.55, 0.53  0.71, 0.69
//
// Around its loops a thread still spends as much as in them, counted in the machine code: of sru
// backward in float32 1,160 instructions for 16 elements, in the loops 1,000; of min_gru forward in
// bfloat16 1,000 for 64, and as many again. Some warps work out the state before each band for all,
// which saves 80 of 2,000 in the 16-bit types (0.01 at most); in float32, 170 of 2,160, it made no
// difference. Not tried: sigmoids by tanh.approx, which would save a special function each, but be
// off by up to 2^-12 where gates are near 0 or 1.
#pragma once

#include <cstddef>

#include "scanrnn/core/config.hpp"

/// Threads of a block: 128, 256 or 512.
#ifndef SCANRNN_CUDA_BLOCK
#define SCANRNN_CUDA_BLOCK 256
#endif

/// Steps of a leaf where channels lie side by side and at most three arrays are staged.
#ifndef SCANRNN_ROW_LEAF
#define SCANRNN_ROW_LEAF 8
#endif

namespace scanrnn::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kThreads = SCANRNN_CUDA_BLOCK;
inline constexpr int kThreadsLog2 = kThreads == 128 ? 7 : (kThreads == 256 ? 8 : 9);
inline constexpr int kWarps = kThreads / kWarp;

/// Children of a node of the tree between tiles.
inline constexpr int kRadixLog2 = 3;
inline constexpr int kRadix = 1 << kRadixLog2;
/// Levels of the tree: enough for 8^9 tiles.
inline constexpr int kMaxLevels = 9;

/// Bytes that a thread moves at once.
inline constexpr int kVectorBytes = 16;

/// How channels that lie side by side are cut: threads of a block, bytes of a row that a thread
/// moves at once, steps that it runs of so many channels.
struct RowShape {
  int threads, vector_bytes, leaf;
};
/// The more arrays a step reads, the fewer steps fit into shared memory. `slots`: arrays that are
/// staged.
constexpr RowShape row_shape(std::size_t element_bytes, bool backward, bool step_is_input,
                             int slots, bool recomputes) {
  const int leaf = recomputes ? 4 : (slots <= 3 ? SCANRNN_ROW_LEAF : 4);
  if (element_bytes > 2 || step_is_input) return {kThreads, kVectorBytes, leaf};
  if (!backward) {
    return {128, kVectorBytes, 8};
  }
  if (recomputes) return {128, kVectorBytes, 4};
  return {128, slots <= 5 ? kVectorBytes : kVectorBytes / 2, 8};
}
/// Threads of whole tiles that a multiprocessor is to hold, at most, by the registers that they
/// take. `direct`: inputs that aren't staged.
constexpr int most_row_threads(std::size_t element_bytes, int direct) {
  return element_bytes > 4 || direct > 1 ? 768 : 1024;
}
/// Steps that these are read ahead.
inline constexpr int kRowsAhead = 2;
/// So many vectors make a line of memory, the least width of a row where there are channels enough.
constexpr SCANRNN_HD int row_band_log2(int vector_bytes) { return vector_bytes == 8 ? 4 : 3; }

/// Leaves where steps lie side by side: steps that a thread runs, for one channel. Where many
/// arrays are staged, shorter ones leave room for more warps.
constexpr int column_leaf(std::size_t element_bytes, int staged_arrays) {
  if (element_bytes > 4) return static_cast<int>(128 / element_bytes);
  return element_bytes == 4 && staged_arrays > 4 ? 16 : 32;
}
/// Words that nodes are apart there. Channels publish theirs at different times, and a sector that
/// several of them share is fought for: (1, 2^20, 64) forward 0.73 of streaming at 16 bytes, 0.67
/// at 8. No more than a hundredth of the arrays, all the same.
constexpr SCANRNN_HD int column_node_words(int words, std::size_t element_bytes) {
  const int apart = element_bytes == 2 ? 2 : 4;
  return words > apart ? words : apart;
}
/// Warps of a block there: each works for itself.
constexpr int column_warps(int staged_arrays) { return staged_arrays <= 3 ? 8 : 4; }
/// Whether a sequence's tiles are shared out to blocks of kRadix there: where no more than one in
/// eight warps would have nothing to do. (Of two or four tiles several sequences share a block.)
constexpr bool fills_blocks(long long tiles) {
  return (kRadix - tiles % kRadix) % kRadix * 8 <= tiles;
}

/// Levels of the tree between clusters. Tiles of 64 channels have room for no more.
inline constexpr int kMostClusterLevels = 5;
/// Where clusters of kRadix blocks (clusters.cuh) are best: by the major compute capability (others
/// than 9 were not measured), a sequence's whole tiles, the tiles of all channels and sequences,
/// and whether a sequence's rows lie one behind the other. With few tiles no cluster takes a second
/// one: (1,2048,32) backward 9.7 us instead of 8.9. Rows of other sequences in between are read
/// later, from pages that memory has closed: [T,B,D] of (16,8192,1024) 0.88, 0.83 with clusters,
/// 0.94, 0.92 without, of (8,2048,1024) 0.85, 0.84 and 0.91, 0.92.
constexpr bool are_clusters_best(int major, long long tiles, long long all_tiles,
                                 bool has_adjacent_rows) {
  return major == 9 && has_adjacent_rows && tiles % kRadix == 0 && all_tiles >= 256 &&
         tiles <= 1ll << kRadixLog2 * (kMostClusterLevels + 1);
}

/// Whether code for an architecture has cells' kernels for whole tiles (__CUDA_ARCH__ / 10). They
/// save instructions, which count where memory has many bytes a cycle and multiprocessor: A100 13,
/// H200 21, B200 28. GPUs with GDDR have 2 to 7, and a library for all architectures would be too
/// large. The scan has them everywhere.
constexpr SCANRNN_HD bool has_fast_memory(int architecture) {
  return architecture == 80 || architecture == 90 || (architecture >= 100 && architecture < 110);
}

static_assert(kThreads == 128 || kThreads == 256 || kThreads == 512);
static_assert(kLeafSteps <= 32 && kLeafSteps % 8 == 0);

}  // namespace scanrnn::cuda
