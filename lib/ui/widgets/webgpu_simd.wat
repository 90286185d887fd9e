;; The kernel `product` with vectors of four float32: works like `product` in `webgpu_on_cpu.js`, on the same memory.
;; Addresses and strides are in bytes. `scratch` is the end of a program's memory. From there follow a one (16), eight
;; zeros (32), the sums of a tile (128), a panel of the right factor (32 × inner), and the left factor in panels
;; (16 × inner × ⌈rows / 4⌉). A tile is 4 rows × 8 columns of the result; its sums stay in registers.
(module
  (memory (import "program" "memory") 0)
  (global $one (import "program" "scratch") i32)

  ;; Interleaves `n` rows or columns by k; `span`: bytes from one k to the next. If n is less than the panel's width, the
  ;; rest keeps old values: $tile computes with them, but no result uses them.
  (func $pack (param $from i32) (param $by_one i32) (param $by_k i32) (param $n i32) (param $inner i32)
    (param $span i32) (param $to i32)
    (local $k i32) (local $source i32) (local $place i32)
    (if (i32.and (i32.eq (local.get $by_one) (i32.const 4))
          (i32.eq (i32.shl (local.get $n) (i32.const 2)) (local.get $span)))
      (then ;; already contiguous: copy four at once
        (loop $vectors
          (local.set $source (local.get $from))
          (local.set $place (local.get $to))
          (local.set $k (local.get $inner))
          (loop $next
            (v128.store (local.get $place) (v128.load (local.get $source)))
            (local.set $source (i32.add (local.get $source) (local.get $by_k)))
            (local.set $place (i32.add (local.get $place) (local.get $span)))
            (br_if $next (local.tee $k (i32.sub (local.get $k) (i32.const 1)))))
          (local.set $from (i32.add (local.get $from) (i32.const 16)))
          (local.set $to (i32.add (local.get $to) (i32.const 16)))
          (br_if $vectors (local.tee $n (i32.sub (local.get $n) (i32.const 4)))))
        (return)))
    (loop $ones
      (local.set $source (local.get $from))
      (local.set $place (local.get $to))
      (local.set $k (local.get $inner))
      (loop $next
        (f32.store (local.get $place) (f32.load (local.get $source)))
        (local.set $source (i32.add (local.get $source) (local.get $by_k)))
        (local.set $place (i32.add (local.get $place) (local.get $span)))
        (br_if $next (local.tee $k (i32.sub (local.get $k) (i32.const 1)))))
      (local.set $from (i32.add (local.get $from) (local.get $by_one)))
      (local.set $to (i32.add (local.get $to) (i32.const 4)))
      (br_if $ones (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))

  ;; Computes the 32 sums of a tile: four numbers of the left panel times eight contiguous ones of the right.
  (func $tile (param $left i32) (param $right i32) (param $right_by_k i32) (param $inner i32) (param $sums i32)
    (local $w v128) (local $x v128) (local $l v128)
    (local $a0 v128) (local $a1 v128) (local $b0 v128) (local $b1 v128)
    (local $c0 v128) (local $c1 v128) (local $d0 v128) (local $d1 v128)
    (loop $next
      (local.set $w (v128.load (local.get $right)))
      (local.set $x (v128.load offset=16 (local.get $right)))
      (local.set $l (v128.load32_splat (local.get $left)))
      (local.set $a0 (f32x4.add (local.get $a0) (f32x4.mul (local.get $l) (local.get $w))))
      (local.set $a1 (f32x4.add (local.get $a1) (f32x4.mul (local.get $l) (local.get $x))))
      (local.set $l (v128.load32_splat offset=4 (local.get $left)))
      (local.set $b0 (f32x4.add (local.get $b0) (f32x4.mul (local.get $l) (local.get $w))))
      (local.set $b1 (f32x4.add (local.get $b1) (f32x4.mul (local.get $l) (local.get $x))))
      (local.set $l (v128.load32_splat offset=8 (local.get $left)))
      (local.set $c0 (f32x4.add (local.get $c0) (f32x4.mul (local.get $l) (local.get $w))))
      (local.set $c1 (f32x4.add (local.get $c1) (f32x4.mul (local.get $l) (local.get $x))))
      (local.set $l (v128.load32_splat offset=12 (local.get $left)))
      (local.set $d0 (f32x4.add (local.get $d0) (f32x4.mul (local.get $l) (local.get $w))))
      (local.set $d1 (f32x4.add (local.get $d1) (f32x4.mul (local.get $l) (local.get $x))))
      (local.set $left (i32.add (local.get $left) (i32.const 16)))
      (local.set $right (i32.add (local.get $right) (local.get $right_by_k)))
      (br_if $next (local.tee $inner (i32.sub (local.get $inner) (i32.const 1)))))
    (v128.store (local.get $sums) (local.get $a0))
    (v128.store offset=16 (local.get $sums) (local.get $a1))
    (v128.store offset=32 (local.get $sums) (local.get $b0))
    (v128.store offset=48 (local.get $sums) (local.get $b1))
    (v128.store offset=64 (local.get $sums) (local.get $c0))
    (v128.store offset=80 (local.get $sums) (local.get $c1))
    (v128.store offset=96 (local.get $sums) (local.get $d0))
    (v128.store offset=112 (local.get $sums) (local.get $d1)))

  ;; Applies an ending of `endings.wgsl` to four sums: `old` is the stored result; `mask` and `rate` are its operands.
  (func $ended (param $ending i32) (param $sum v128) (param $old v128) (param $mask v128) (param $rate v128)
    (result v128)
    (if (i32.eq (local.get $ending) (i32.const 1)) ;; ReLU; NaN stays NaN
      (then (return (v128.andnot (local.get $sum) (f32x4.le (local.get $sum) (v128.const f32x4 0 0 0 0))))))
    (if (i32.eq (local.get $ending) (i32.const 2)) ;; ReLU's gradient
      (then (return (v128.and (local.get $sum) (f32x4.gt (local.get $mask) (v128.const f32x4 0 0 0 0))))))
    (if (i32.eq (local.get $ending) (i32.const 3)) ;; gradient descent
      (then (return (f32x4.sub (local.get $old) (f32x4.mul (local.get $rate) (local.get $sum))))))
    (local.get $sum))

  ;; Stores n sums of a row, four at a time, then the rest singly.
  (func $end_row (param $ending i32) (param $n i32) (param $sums i32) (param $biases i32) (param $result i32)
    (param $mask i32) (param $rate v128)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $n)))
        (if (i32.ge_s (local.get $n) (i32.const 4))
          (then
            (v128.store (local.get $result) (call $ended (local.get $ending)
              (f32x4.add (v128.load (local.get $sums)) (v128.load (local.get $biases)))
              (v128.load (local.get $result)) (v128.load (local.get $mask)) (local.get $rate)))
            (local.set $n (i32.sub (local.get $n) (i32.const 4)))
            (local.set $sums (i32.add (local.get $sums) (i32.const 16)))
            (local.set $biases (i32.add (local.get $biases) (i32.const 16)))
            (local.set $result (i32.add (local.get $result) (i32.const 16)))
            (local.set $mask (i32.add (local.get $mask) (i32.const 16)))
            (br $next)))
        (v128.store32_lane 0 (local.get $result) (call $ended (local.get $ending)
          (f32x4.add (v128.load32_zero (local.get $sums)) (v128.load32_zero (local.get $biases)))
          (v128.load32_zero (local.get $result)) (v128.load32_zero (local.get $mask)) (local.get $rate)))
        (local.set $n (i32.sub (local.get $n) (i32.const 1)))
        (local.set $sums (i32.add (local.get $sums) (i32.const 4)))
        (local.set $biases (i32.add (local.get $biases) (i32.const 4)))
        (local.set $result (i32.add (local.get $result) (i32.const 4)))
        (local.set $mask (i32.add (local.get $mask) (i32.const 4)))
        (br $next))))

  (func $least (param $a i32) (param $b i32) (result i32)
    (select (local.get $a) (local.get $b) (i32.lt_s (local.get $a) (local.get $b))))

  ;; The parameters are an operation's fields, named as in `lib/model/backends/webgpu`; -1 for a missing field.
  (func (export "product")
    (param $rows i32) (param $columns i32) (param $inner i32)
    (param $left i32) (param $left_by_row i32) (param $left_by_column i32)
    (param $right i32) (param $right_by_row i32) (param $right_by_column i32)
    (param $row_of_ones i32) (param $biases i32) (param $result i32) (param $ending i32) (param $mask i32)
    (param $rate i32)
    (local $zeros i32) (local $sums i32) (local $panel i32) (local $panels i32) (local $by_row i32)
    (local $n i32) (local $row i32) (local $column i32) (local $r i32)
    (local $from i32) (local $by_k i32) (local $place i32) (local $descent v128)
    (local.set $zeros (i32.add (global.get $one) (i32.const 16)))
    (local.set $sums (i32.add (local.get $zeros) (i32.const 32)))
    (local.set $panel (i32.add (local.get $sums) (i32.const 128)))
    (local.set $panels (i32.add (local.get $panel) (i32.shl (local.get $inner) (i32.const 5))))
    (local.set $by_row (i32.shl (local.get $inner) (i32.const 2))) ;; in the left panels: 16 bytes per k for four rows
    (f32.store (global.get $one) (f32.const 1))
    (if (i32.ne (local.get $rate) (i32.const -1)) (then (local.set $descent (v128.load32_splat (local.get $rate)))))

    ;; Pack the left factor, four rows at a time.
    (loop $next
      (call $pack
        (i32.add (local.get $left) (i32.mul (local.get $row) (local.get $left_by_row)))
        (local.get $left_by_row) (local.get $left_by_column)
        (call $least (i32.const 4) (i32.sub (local.get $rows) (local.get $row))) (local.get $inner)
        (i32.const 16) (i32.add (local.get $panels) (i32.mul (local.get $row) (local.get $by_row))))
      (br_if $next (i32.lt_s (local.tee $row (i32.add (local.get $row) (i32.const 4))) (local.get $rows))))
    (if (i32.ne (local.get $row_of_ones) (i32.const -1))
      (then
        (local.set $r (i32.and (local.get $row_of_ones) (i32.const 3)))
        (local.set $row (i32.sub (local.get $row_of_ones) (local.get $r)))
        (call $pack (global.get $one) (i32.const 0) (i32.const 0) (i32.const 1) (local.get $inner) (i32.const 16)
          (i32.add (i32.shl (local.get $r) (i32.const 2))
            (i32.add (local.get $panels) (i32.mul (local.get $row) (local.get $by_row)))))))

    (loop $columns
      (local.set $n (call $least (i32.const 8) (i32.sub (local.get $columns) (local.get $column))))
      (local.set $from (i32.add (local.get $right) (i32.mul (local.get $column) (local.get $right_by_column))))
      (local.set $by_k (local.get $right_by_row))
      ;; A panel that is read only once need not be packed.
      (if (i32.eqz (i32.and (i32.le_s (local.get $rows) (i32.const 4))
            (i32.and (i32.eq (local.get $right_by_column) (i32.const 4)) (i32.eq (local.get $n) (i32.const 8)))))
        (then
          (call $pack (local.get $from) (local.get $right_by_column) (local.get $right_by_row) (local.get $n)
            (local.get $inner) (i32.const 32) (local.get $panel))
          (local.set $from (local.get $panel))
          (local.set $by_k (i32.const 32))))
      (local.set $row (i32.const 0))
      (loop $rows_of_tiles
        (call $tile (i32.add (local.get $panels) (i32.mul (local.get $row) (local.get $by_row)))
          (local.get $from) (local.get $by_k) (local.get $inner) (local.get $sums))
        (local.set $r (i32.const 0))
        (loop $rows_of_a_tile
          (local.set $place (i32.mul (i32.const 4) (i32.add (local.get $column)
            (i32.mul (local.get $columns) (i32.add (local.get $row) (local.get $r))))))
          (call $end_row (local.get $ending) (local.get $n)
            (i32.add (local.get $sums) (i32.shl (local.get $r) (i32.const 5)))
            (select (local.get $zeros) (i32.add (local.get $biases) (i32.shl (local.get $column) (i32.const 2)))
              (i32.eq (local.get $biases) (i32.const -1)))
            (i32.add (local.get $place) (local.get $result))
            (i32.add (local.get $place)
              (select (local.get $result) (local.get $mask) (i32.eq (local.get $mask) (i32.const -1))))
            (local.get $descent))
          (local.set $r (i32.add (local.get $r) (i32.const 1)))
          (br_if $rows_of_a_tile
            (i32.lt_s (local.get $r) (call $least (i32.const 4) (i32.sub (local.get $rows) (local.get $row))))))
        (br_if $rows_of_tiles (i32.lt_s (local.tee $row (i32.add (local.get $row) (i32.const 4))) (local.get $rows))))
      (br_if $columns (i32.lt_s (local.tee $column (i32.add (local.get $column) (i32.const 8))) (local.get $columns)))))
)
