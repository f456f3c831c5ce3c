// Which page is shown: the fragment of the address, so that it works below any prefix.

const read = () => location.hash.replace(/^#\//, "").split("/");
let parts = $state.raw(read());
window.addEventListener("hashchange", () => (parts = read()));

export const route = {
  get page() {
    return parts[0] || "home";
  },
  get id() {
    return parts[1] ?? "";
  },
  go(page: string, id = "") {
    location.hash = `#/${page}${id ? `/${id}` : ""}`;
  },
};
