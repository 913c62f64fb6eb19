import { type Command, readFlags } from './command.ts'
import { FIELDS, readSettings, settingFlags, variableOf } from './settings.ts'

export const config: Command = {
  name: 'config',
  summary: 'show every setting of the gate, and where its value came from',
  help: `oncekey config [the flags of oncekey gate] [--json]

Shows each setting with its value and its origin. A flag wins over the environment, that over the config file
(oncekey.config.ts, .js or .json in this directory, or --config FILE), and that over the default.

  oncekey config
  ONCEKEY_PORT=9000 oncekey config --store redis://localhost

${Object.entries(FIELDS)
  .map(([name, { flag, help }]) => `  --${flag.padEnd(12)} ${variableOf(name).padEnd(20)} ${help}`)
  .join('\n')}`,

  async run(args) {
    const { values } = readFlags(args, settingFlags())
    const { settings, origins } = await readSettings(values, process.env, process.cwd())
    if (settings.json) {
      console.log(JSON.stringify(origins, null, 2))
      return 0
    }
    const width = Math.max(...origins.map(({ value }) => value.length))
    for (const { name, value, origin } of origins) {
      console.log(`${name.padEnd(12)} ${(value || '–').padEnd(width)}  ${origin}`)
    }
    return 0
  },
}
