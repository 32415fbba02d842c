i64 left = i[1], r = 0, width = 0;
for (; r < row; ++r, left -= width) {
    width = r + offset + 1 < 0 ? 0 : r + offset + 1 > col ? col : r + offset + 1;
    if (left < width) break;
}
result.set(i[0] == 0 ? r : left, i[0], i[1]);
