export const expected = () => ({ page: "", shows: [] });
export const plain = (line) => line;
