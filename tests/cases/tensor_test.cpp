#include "cases/tensor.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/error.h"

namespace assay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no InputError";
}

Tensor counting(Shape shape) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(element_count(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  return Tensor::from_integers(DType::kI16, std::move(shape), values);
}

TEST(Tensor, element_count_of_a_scalar_is_1) { EXPECT_EQ(element_count({}), 1); }

TEST(Tensor, element_count_is_the_product) { EXPECT_EQ(element_count({2, 45, 64}), 5760); }

TEST(Tensor, element_count_of_an_empty_dimension_is_0) { EXPECT_EQ(element_count({3, 0, 5}), 0); }

TEST(Tensor, element_count_refuses_negative_dimensions) {
  EXPECT_THAT(message_of([] { element_count({2, -1}); }), HasSubstr("shape [2, -1]: negative dimension -1"));
}

TEST(Tensor, element_count_refuses_overflow) {
  const std::int64_t big = std::int64_t{1} << 32;
  EXPECT_THAT(message_of([&] { element_count({big, big}); }), HasSubstr("overflows"));
  EXPECT_THAT(message_of([&] { element_count({big, 0, big}); }), HasSubstr("overflows"));
  EXPECT_EQ(element_count({std::numeric_limits<std::int64_t>::max()}), std::numeric_limits<std::int64_t>::max());
}

TEST(Tensor, zeros_refuses_a_byte_count_that_overflows) {
  EXPECT_THAT(message_of([] { Tensor::zeros(DType::kF64, {std::int64_t{1} << 61}); }), HasSubstr("bytes overflow"));
}

TEST(Tensor, shape_is_printed_in_brackets) {
  EXPECT_EQ(to_string(Shape{2, 45, 64}), "[2, 45, 64]");
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(Tensor, default_tensor_is_empty) {
  EXPECT_EQ(Tensor().size(), 0);
  EXPECT_THAT(Tensor().shape(), ElementsAre(0));
  EXPECT_TRUE(Tensor().reals().empty());
}

TEST(Tensor, reals_are_rounded_once_to_the_dtype) {
  const std::vector<double> values{17, 464, 465, -0x1p-9};
  const Tensor tensor = Tensor::from_reals(DType::kE4M3, {4}, values);
  EXPECT_EQ(tensor.real(0), 16);
  EXPECT_EQ(tensor.real(1), 448);
  EXPECT_TRUE(std::isnan(tensor.real(2)));
  EXPECT_EQ(tensor.code(3), 0x81U);
  EXPECT_EQ(Tensor::from_reals(DType::kBF16, {1}, std::vector<double>{1e39}).code(0), 0x7F80U);
}

TEST(Tensor, every_real_dtype_reads_back) {
  const std::vector<double> values{1, 0.5, 2};
  for (const DType dtype :
       {DType::kE4M3, DType::kE5M2, DType::kUE8M0, DType::kBF16, DType::kF16, DType::kF32, DType::kF64})
    EXPECT_EQ(Tensor::from_reals(dtype, {3}, values).reals(), values) << name_of(dtype);
}

TEST(Tensor, every_integer_dtype_reads_back) {
  const std::vector<std::int64_t> values{1, 0, 1};
  for (int i = 0; i <= static_cast<int>(DType::kI64); ++i) {
    const Tensor tensor = Tensor::from_integers(static_cast<DType>(i), {3}, values);
    EXPECT_EQ(tensor.integers(), values) << name_of(tensor.dtype());
    EXPECT_THAT(tensor.reals(), ElementsAre(1.0, 0.0, 1.0)) << name_of(tensor.dtype());
  }
  EXPECT_EQ(Tensor::from_integers(DType::kI16, {1}, std::vector<std::int64_t>{-2}).integer(0), -2);
  EXPECT_EQ(Tensor::from_integers(DType::kI64, {1}, std::vector<std::int64_t>{INT64_MIN}).integer(0), INT64_MIN);
}

TEST(Tensor, integers_out_of_range_are_refused) {
  const auto store = [](DType dtype, std::int64_t value) {
    return message_of([&] { Tensor::from_integers(dtype, {1}, std::vector<std::int64_t>{value}); });
  };
  EXPECT_THAT(store(DType::kU8, 256), HasSubstr("U8 element 0: value 256; 0 to 255 allowed"));
  EXPECT_THAT(store(DType::kI8, -129), HasSubstr("-128 to 127 allowed"));
  EXPECT_THAT(store(DType::kBool, 2), HasSubstr("0 to 1 allowed"));
  EXPECT_THAT(store(DType::kU64, -1), HasSubstr("value -1"));
  EXPECT_THAT(store(DType::kI32, std::int64_t{1} << 31), HasSubstr("value 2147483648"));
}

TEST(Tensor, reals_stored_as_integers_must_be_exact) {
  const auto store = [](DType dtype, double value) {
    return message_of([&] { Tensor::from_reals(dtype, {1}, std::vector<double>{value}); });
  };
  EXPECT_THAT(store(DType::kI32, 1.5), HasSubstr("I32 element 0: value 1.5"));
  EXPECT_THAT(store(DType::kI64, 0x1p63), HasSubstr("value 9.2"));
  EXPECT_THAT(store(DType::kU64, 0x1p64), HasSubstr("U64 element 0"));
  EXPECT_THAT(store(DType::kI64, std::nan("")), HasSubstr("value nan"));
  EXPECT_THAT(store(DType::kU8, 300), HasSubstr("0 to 255 allowed"));
}

TEST(Tensor, u64_above_int64_reads_as_real_only) {
  const Tensor tensor = Tensor::from_reals(DType::kU64, {1}, std::vector<double>{0x1p63});
  EXPECT_EQ(tensor.real(0), 0x1p63);
  EXPECT_THAT(message_of([&] { (void)tensor.integer(0); }), HasSubstr("U64 element 0: value 9223372036854775808"));
}

TEST(Tensor, the_number_of_values_must_match_the_shape) {
  EXPECT_THAT(message_of([] {
                Tensor::from_reals(DType::kF32, {3}, std::vector<double>{1, 2});
              }),
              HasSubstr("F32 tensor [3]: 2 values; 3 allowed"));
}

TEST(Tensor, a_view_needs_the_exact_number_of_bytes) {
  const std::vector<std::byte> bytes(7);
  EXPECT_THAT(message_of([&] { Tensor::view(DType::kF32, {2}, bytes, nullptr); }), HasSubstr("7 bytes; 8 allowed"));
}

TEST(Tensor, a_view_keeps_its_owner_alive) {
  auto owner = std::make_shared<std::vector<std::byte>>(4);
  Tensor tensor = Tensor::view(DType::kF32, {1}, *owner, owner);
  const std::weak_ptr<std::vector<std::byte>> alive = owner;
  owner.reset();
  Tensor row = tensor.rows(0, 1);
  tensor = Tensor();
  EXPECT_FALSE(alive.expired());
  row = Tensor();
  EXPECT_TRUE(alive.expired());
}

TEST(Tensor, an_unaligned_view_reads_correctly) {
  const std::vector<double> values{1.25, -3};
  std::vector<std::byte> bytes(17);
  std::memcpy(bytes.data() + 1, values.data(), 16);
  const Tensor tensor = Tensor::view(DType::kF64, {2}, std::span(bytes).subspan(1), nullptr);
  EXPECT_EQ(tensor.reals(), values);
}

TEST(Tensor, rows_share_the_bytes) {
  const Tensor tensor = counting({4, 3});
  const Tensor rows = tensor.rows(1, 3);
  EXPECT_THAT(rows.shape(), ElementsAre(2, 3));
  EXPECT_THAT(rows.integers(), ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_EQ(rows.bytes().data(), tensor.bytes().data() + 6);
  EXPECT_EQ(tensor.rows(2, 2).size(), 0);
  EXPECT_THAT(counting({0, 3}).rows(0, 0).shape(), ElementsAre(0, 3));
}

TEST(Tensor, rows_outside_the_first_dimension_are_refused) {
  EXPECT_THAT(message_of([] { (void)counting({4, 3}).rows(2, 5); }), HasSubstr("rows of [4, 3]: [2, 5)"));
  EXPECT_THAT(message_of([] { (void)counting({4, 3}).rows(3, 2); }), HasSubstr("[3, 2)"));
  EXPECT_THAT(message_of([] { (void)counting({}).rows(0, 1); }), HasSubstr("rows of []"));
}

TEST(Tensor, reshaped_keeps_order_and_bytes) {
  const Tensor tensor = counting({4, 3});
  EXPECT_EQ(tensor.reshaped({2, 6}).integers(), tensor.integers());
  EXPECT_EQ(tensor.reshaped({12}).bytes().data(), tensor.bytes().data());
  EXPECT_THAT(message_of([&] { (void)tensor.reshaped({5}); }), HasSubstr("reshape of [4, 3]: new shape [5]"));
}

TEST(Tensor, permuted_1_0_is_the_transpose) {
  const Tensor transpose = counting({2, 3}).permuted({1, 0});
  EXPECT_THAT(transpose.shape(), ElementsAre(3, 2));
  EXPECT_THAT(transpose.integers(), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(Tensor, permuted_moves_element_ijk_to_kij) {
  const Tensor tensor = counting({2, 3, 4}).permuted({2, 0, 1});
  EXPECT_THAT(tensor.shape(), ElementsAre(4, 2, 3));
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < 3; ++j)
      for (std::int64_t k = 0; k < 4; ++k) EXPECT_EQ(tensor.integer((k * 2 + i) * 3 + j), (i * 3 + j) * 4 + k);
}

TEST(Tensor, permuted_accepts_scalars_and_empty_tensors) {
  EXPECT_THAT(counting({}).permuted({}).integers(), ElementsAre(0));
  EXPECT_THAT(counting({2, 0, 3}).permuted({2, 0, 1}).shape(), ElementsAre(3, 2, 0));
}

TEST(Tensor, permuted_needs_each_dimension_once) {
  for (const std::vector<int>& order : std::vector<std::vector<int>>{{0}, {0, 0}, {0, 2}, {-1, 0}, {0, 1, 2}})
    EXPECT_THAT(message_of([&] { (void)counting({2, 3}).permuted(order); }), HasSubstr("permutation of [2, 3]"));
}

TEST(TensorDeathTest, an_element_outside_the_tensor_aborts) {
  EXPECT_DEATH((void)counting({2}).real(2), "broken invariant");
  EXPECT_DEATH((void)counting({2}).integer(-1), "broken invariant");
  EXPECT_DEATH((void)Tensor::zeros(DType::kF64, {1}).code(0), "broken invariant");
  EXPECT_DEATH((void)Tensor::zeros(DType::kF32, {1}).integer(0), "broken invariant");
}

}  // namespace
}  // namespace assay
