i64 left = i[1], r = 0, first = 0;
for (; r < row; ++r, left -= col - first) {
    first = r + offset < 0 ? 0 : r + offset > col ? col : r + offset;
    if (left < col - first) break;
}
result.set(i[0] == 0 ? r : first + left, i[0], i[1]);
